"""Hardware of this machine, for ``hardware=auto``: the resolver ``${local:KEY,MODE}`` of conf/hardware/auto.yaml."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from memlab.core.config import Hardware
from memlab.core.errors import ConfigError
from memlab.core.sizes import GIB
from memlab.files.conf_files import conf_dir
from memlab.system import machine


def local(key: str, mode: str, loop: str = "memlab") -> Any:
    """Resolve ``${local:gpus,${mode}}`` of conf/hardware/auto.yaml: a hardware value of this machine.

    ``loop``: whose training is predicted (``training.loop``). Raises :class:`ConfigError` for a command without GPUs.
    """
    if mode == "predict" and loop == "command" and not machine.detect().gpus:
        raise ConfigError("A command is predicted for GPUs that you name: add hardware=a100_80g_x8 hardware.gpus=4.")
    return _hardware(mode)[key]


PREDICTED_BY_DEFAULT = "h100"
"""GPU (a file of conf/hardware/gpu/) that is predicted on a machine without GPUs, unless another one is chosen."""


@cache
def _hardware(mode: str) -> dict[str, Any]:
    nothing_known = {field.name: None for field in dataclasses.fields(Hardware)} | {"device": "cuda"}
    found = machine.detect().gpus
    if not found and mode != "predict":
        return {**nothing_known, "device": "cpu", "gpu": "CPU", "gpus": 2}
    if not found:
        return {**nothing_known, "gpus": 1, **_known_gpus()[PREDICTED_BY_DEFAULT]}
    entry: dict[str, Any] = next(
        (gpu for gpu in _known_gpus().values() if gpu["gpu"].lower() in found[0].name.lower()), {}
    )
    measured = {"gpu": found[0].name, "gpus": len(found), "memory_gib": round(found[0].total_bytes / GIB, 2)}
    return {**nothing_known, **entry, **measured}


def _known_gpus() -> dict[str, Any]:
    """Read conf/hardware/gpu/: file name without ending -> values."""
    files = sorted((Path(conf_dir()) / "hardware" / "gpu").glob("*.yaml"))
    return {file.stem: OmegaConf.to_container(OmegaConf.load(file)) for file in files}
