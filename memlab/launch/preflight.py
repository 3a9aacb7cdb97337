"""What a configuration names outside itself - data, a model's folder, keys of its configuration - before any run.

Each takes a second or less: what it finds would otherwise end a run after half a minute, and each point of a sweep.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from memlab import jsonl
from memlab.conf_files import shipped_models
from memlab.config import Config, Model
from memlab.errors import ConfigError

CHECKED_BYTES = 64 * 2**20
"""So much of a data file is read before a run; what is wrong behind it shows when the ranks read all of it."""

TIMEOUT_S = 60.0

HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
"""``name`` or ``owner/name``, as the Hugging Face hub has them."""


def check(configs: Iterable[Config]) -> None:
    """Raise :class:`ConfigError` for the first of these configurations that names what is not there or is broken."""
    configs = list(configs)
    for path, field in dict.fromkeys((c.data.path, c.data.text_field) for c in configs if c.data.source == "jsonl"):
        if path:  # rules.py says that it is missing
            jsonl.check(Path(path), field, CHECKED_BYTES)
    for tokenizer in dict.fromkeys(c.data.tokenizer for c in configs if c.data.tokenizer):
        _check_place("data.tokenizer", tokenizer)
    models = {json.dumps(asdict(c.model), sort_keys=True): c.model for c in configs}
    for model in models.values():
        if not model.config or model.weights == "pretrained":
            _check_place("model.path", model.path)
            if Path(model.path).is_dir() and not Path(model.path, "config.json").is_file():
                raise ConfigError(f"model.path={model.path}: the folder holds no config.json.")
    _check_model_configs([model for model in models.values() if _can_be_read(model)])


def _check_place(key: str, path: str) -> None:
    """A folder, or an id of the hub."""
    if not Path(path).is_dir() and not HUB_ID.fullmatch(path):
        raise ConfigError(f"{key}={path}: no such folder, and no model of the hub, which are <name> or <owner>/<name>.")


def _can_be_read(model: Model) -> bool:
    """Whether there is something to check that needs neither the hub nor code of the model's own. What ships is
    sound."""
    if model.config:
        return bool(model.overrides) or model.config not in shipped_models()
    return Path(model.path).is_dir() and not model.trust_remote_code


def _check_model_configs(models: list[Model]) -> None:
    """What transformers says of them, in a process of its own: only there may it be imported."""
    if not models:
        return
    request = json.dumps([asdict(model) for model in models])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    words = [sys.executable, "-m", "memlab.worker.model_config"]
    try:
        done = subprocess.run(
            words, input=request, env=environment, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
        )
    except subprocess.SubprocessError:  # which says nothing of the models: the ranks will
        return
    for reason in filter(None, json.loads(done.stdout.splitlines()[-1])):
        raise ConfigError(reason)
