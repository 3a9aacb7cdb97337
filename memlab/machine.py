"""What this machine has: its GPUs as the driver tells them, and the packages and libraries a plan may ask for.

Reads NVML, never torch, so that it costs milliseconds and creates no CUDA context.
"""

import ctypes.util
import importlib.util
import itertools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """``id`` is what the launcher is told: an index, or the UUID that CUDA_VISIBLE_DEVICES names.

    ``uuid`` is the device itself: in a container or a batch job, index 0 may be any.
    """

    id: str
    name: str
    total_bytes: int
    compute_capability: tuple[int, int]
    uuid: str = ""


@dataclass(frozen=True)
class Machine:
    gpus: tuple[Gpu, ...] = field(default=())
    driver: str | None = None

    @staticmethod
    def has_package(name: str) -> bool:
        return importlib.util.find_spec(name) is not None

    @staticmethod
    def has_program(name: str) -> bool:
        return shutil.which(name) is not None

    @staticmethod
    def has_library(name: str) -> bool:
        return ctypes.util.find_library(name) is not None


@cache
def detect() -> Machine:
    """The GPUs that this process may use (CUDA_VISIBLE_DEVICES is honoured), in their order."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no library, or a driver that does not answer: a machine without GPUs
        return Machine()
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        return Machine(gpus=tuple(_gpu(pynvml, id) for id in _visible_ids(pynvml)), driver=driver)
    finally:
        pynvml.nvmlShutdown()


def _visible_ids(pynvml) -> list[str]:
    all_ids = [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return all_ids
    # As CUDA does: the first entry that is no device ends the list.
    ids = (id.strip() for id in visible.split(","))
    return list(itertools.takewhile(lambda id: _is_device(pynvml, id, all_ids), ids))


def _is_device(pynvml, id: str, indices: list[str]) -> bool:
    if not id.startswith(("GPU-", "MIG-")):
        return id in indices
    try:
        pynvml.nvmlDeviceGetHandleByUUID(id)
    except pynvml.NVMLError:
        return False
    return True


def _gpu(pynvml, id: str) -> Gpu:
    handle = nvml_handle(pynvml, id)
    return Gpu(
        id=id,
        name=pynvml.nvmlDeviceGetName(handle),
        total_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
    )


def nvml_handle(pynvml, id: str):
    """NVML's handle of a GPU id as :class:`Gpu` has it."""
    if id.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(id))
    return pynvml.nvmlDeviceGetHandleByUUID(id)


def used_bytes(ids: Sequence[str]) -> list[int]:
    """What the driver has given out now on each of these GPUs, whoever has it."""
    pynvml = _nvml()
    return [pynvml.nvmlDeviceGetMemoryInfo(nvml_handle(pynvml, id)).used for id in ids]


@cache
def _nvml():
    """NVML for as long as this process lives: starting it takes longer than all that is asked of it."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml
