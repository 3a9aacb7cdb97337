"""Checks before any run of the things that a configuration refers to: data, a model's folder, keys of the model.

Each check takes a second or less. Without it, the same mistake would end every point of a sweep after half a minute.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from memlab.core.command_template import SCRIPT, check_effects, check_places, filled, template
from memlab.core.config import Config, Model
from memlab.core.errors import ConfigError
from memlab.core.plan import size_of, with_size
from memlab.files import json_file
from memlab.files.conf_files import shipped_models
from memlab.files.training_data import check_data
from memlab.rules.command import without_words

CHECKED_BYTES = 64 * 2**20
"""Bytes of a data file that are read before a run. The ranks find mistakes after these bytes."""

TIMEOUT_S = 60.0

HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
"""Pattern of a model id of the Hugging Face hub: ``name`` or ``owner/name``."""


def check(configs: Sequence[Config]) -> None:
    """Raise :class:`ConfigError` for the first reference of these configurations that is missing or broken."""
    check_commands([config for config in configs if config.is_command])
    configs = [config for config in configs if not config.is_command]
    for path, field in dict.fromkeys((c.data.path, c.data.text_field) for c in configs if c.data.source == "jsonl"):
        if path:  # memlab/rules/model.py reports a missing data.path
            json_file.check(Path(path), field, CHECKED_BYTES)
    for tokenizer in dict.fromkeys(c.data.tokenizer for c in configs if c.data.tokenizer):
        _check_place("data.tokenizer", tokenizer)
    models = {json.dumps(asdict(c.model), sort_keys=True): c.model for c in configs}
    for model in models.values():
        if not model.config or model.weights == "pretrained":
            _check_place("model.path", model.path)
            if Path(model.path).is_dir() and not Path(model.path, "config.json").is_file():
                raise ConfigError(f"model.path={model.path}: the folder holds no config.json.")
    _check_model_configs([model for model in models.values() if _can_be_read(model)])


def check_commands(configs: Sequence[Config]) -> None:
    """Raise :class:`ConfigError` if a command has a place that nothing fills, or no place for a key that varies."""
    for config in configs:
        check_places(config)
        program = filled(config, Path("deepspeed.json"), Path("output"), 0)[0]
        if shutil.which(program) is None:
            beside = Path(sys.executable).parent
            is_there = "/" not in program and (beside / program).is_file()
            hint = f" It is in {beside}: put that on the PATH." if is_there else ""
            raise ConfigError(f"training.command: no program '{program}' on the path.{hint}")
        script = Path(config.training.script.partition(" ")[0])
        if script.suffix == ".py" and not script.is_file():
            raise ConfigError(f"{SCRIPT}={script}: no such file.")
        check_data(config)
    configs = [config for config in configs if not without_words(config)]  # these points are unsupported, one by one
    searched = [with_size(config, size_of(config) + 1) for config in configs if config.sweep.search != "none"]
    check_effects([*configs, *searched])


CHECKPOINTS = ("checkpoint-*", "global_step*", "*.distcp")
"""Names inside a folder that holds checkpoints of transformers, DeepSpeed or torch."""


def shared_checkpoints(configs: Iterable[Config]) -> Path | None:
    """Return a folder with checkpoints that a command names for all its points; ``None`` if there is none."""
    words = dict.fromkeys(word for config in configs for word in template(config).plain_words)
    folders = (path for word in words if (path := Path(word.rpartition("=")[2])).is_dir())
    return next((path for path in folders if any(any(path.glob(pattern)) for pattern in CHECKPOINTS)), None)


def _check_place(key: str, path: str) -> None:
    """Raise :class:`ConfigError` unless ``path`` is a folder or has the form of a hub id."""
    if not Path(path).is_dir() and not HUB_ID.fullmatch(path):
        raise ConfigError(f"{key}={path}: no such folder, and no model of the hub, which are <name> or <owner>/<name>.")


def _can_be_read(model: Model) -> bool:
    """Whether the model's configuration needs a check and can be read without the hub and without the model's code.

    Shipped configurations without overrides need no check.
    """
    if model.config:
        return bool(model.overrides) or model.config not in shipped_models().values()
    return Path(model.path).is_dir() and not model.trust_remote_code


def _check_model_configs(models: list[Model]) -> None:
    """Let transformers check the models, in a separate process because this one must not import transformers."""
    if not models:
        return
    request = json.dumps([asdict(model) for model in models])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    words = [sys.executable, "-m", "memlab.training.model_config"]
    try:
        done = subprocess.run(
            words, input=request, env=environment, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
        )
    except subprocess.SubprocessError:  # not the fault of a model: the ranks will report any mistake
        return
    for reason in filter(None, json.loads(done.stdout.splitlines()[-1])):
        raise ConfigError(reason)
