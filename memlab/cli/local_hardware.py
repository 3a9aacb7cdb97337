"""Hardware of this machine, for ``hardware=auto``: the resolver ``${local:KEY,MODE}`` of conf/hardware/auto.yaml."""

import dataclasses
from functools import cache
from typing import Any

from memlab.cli.override_words import instead_of_a_name
from memlab.core.config import Hardware
from memlab.core.errors import ConfigError
from memlab.core.sizes import GIB
from memlab.files.conf_files import gpu_here, known_gpu
from memlab.system import machine


def local(key: str, mode: str, gpu: str | None = None) -> Any:
    """Resolve ``${local:gpus,${mode}}`` of conf/hardware/auto.yaml: a hardware value of this machine.

    ``gpu``: name of the GPU that the value is of; one that is not here has the values of its datasheet. Raises
    :class:`ConfigError` for a prediction without a GPU, and for a GPU that memlab does not know.
    """
    here = _hardware(mode)
    if key == "gpu" and here["gpu"] is None:
        raise ConfigError("A prediction is for GPUs that you name: add hardware=a100_80g_x8 hardware.gpus=4.")
    if gpu in (None, here["gpu"]) or str(gpu).isdigit():  # a number is refused by name, after the composition
        return here[key]
    if not (datasheet := known_gpu(str(gpu))):
        raise ConfigError(f"memlab does not know the GPU '{gpu}'. {instead_of_a_name(gpu)}")
    return datasheet.get(key)


@cache
def _hardware(mode: str) -> dict[str, Any]:
    nothing_known = {field.name: None for field in dataclasses.fields(Hardware)}
    if mode == "compose":  # nothing is asked of this machine
        return {**nothing_known, "device": "cuda", "gpu": "", "gpus": 1}
    found = machine.detect().gpus
    if not found:
        usual = {"device": "cuda", "gpus": 1} if mode == "predict" else {"device": "cpu", "gpu": "CPU", "gpus": 2}
        return {**nothing_known, **usual}
    here = gpu_here(found[0].name, round(found[0].total_bytes / GIB, 2))
    return {**nothing_known, **here, "device": "cuda", "gpus": len(found)}
