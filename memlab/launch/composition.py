"""What a configuration composes into, for ``mode=compose``: what the libraries, the ranks and the launcher get."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memlab.core.command_template import (
    DATA_DIR,
    DEEPSPEED_JSON,
    PORT,
    RUN_DIR,
    TRAINING_ARGS,
    check_places,
    command_environment,
    filled,
    template,
)
from memlab.core.errors import RecordError
from memlab.core.plan import Plan, make_plan
from memlab.files.conf_files import overrides_of
from memlab.launch.launcher_line import command
from memlab.rules.unsupported import unsupported
from memlab.runs.folder import RunFolder

LATER = {RUN_DIR: f"{{{RUN_DIR}}}", PORT: f"{{{PORT}}}", DATA_DIR: f"{{{DATA_DIR}}}"}
"""Places of a launcher's line that only a run fills."""


def composition(plan: Plan, words: Sequence[str] = ()) -> dict[str, Any]:
    """Return a plan as one JSON object, without reading anything of this machine.

    Raises :class:`ConfigError` for a place that is no key.

    - ``words``: the words that compose it; ``unsupported``: why the combination cannot run, empty if it can.
    - ``deepspeed``, ``training_args``: ``None`` if a command of the user's own has no place for them.
    - ``command``: the launcher's line. A run passes its own line as ``words``; otherwise ``{run_dir}``, ``{data_dir}``
      and ``{master_port}`` stand for what a run fills in. ``None`` for several nodes without hostfile or launcher.
    """
    config = plan.config
    launched, given = list(words) or _command(plan), template(config).places
    told = overrides_of(plan.choices, plan.to_json()["config"])
    return {
        "words": [word for line in told for word in shlex.split(line)],
        "unsupported": unsupported(config, None),
        "world_size": plan.world_size,
        "deepspeed": plan.deepspeed if DEEPSPEED_JSON in given else None,
        "training_args": plan.training_args if TRAINING_ARGS in given else None,
        "environment": command_environment(config, {}) if config.is_command else plan.environment,
        "command": launched,
    }


def kept_composition(folder: RunFolder) -> dict[str, Any]:
    """Return the composition of a run from its folder: as it ran, or composed again where no plan is kept."""
    try:
        plan = folder.read_plan()
    except RecordError:
        record = folder.read_record()
        plan = replace(make_plan(record.config, record.choices), unknown_config=record.unknown_config)
    return composition(plan, folder.earlier().get("command") or ())


def as_json(compositions: Sequence[dict[str, Any]], is_sweep: bool) -> str:
    """Write the objects of a sweep in a line each, and that of a single run over several lines."""
    return "\n".join(json.dumps(each, indent=None if is_sweep else 2) for each in compositions)


def _command(plan: Plan) -> list[str] | None:
    config, hardware = plan.config, plan.config.hardware
    if config.is_command:
        check_places(config)
        return filled(config, Path("deepspeed.json"), Path(LATER[RUN_DIR]), LATER[PORT], LATER[DATA_DIR])
    if plan.is_multi_node and None in (hardware.hostfile, hardware.launcher):
        return None
    gpus = range(hardware.gpus) if hardware.device == "cuda" else ()
    return command(plan, [LATER[RUN_DIR]], [*map(str, gpus)], LATER[PORT])
