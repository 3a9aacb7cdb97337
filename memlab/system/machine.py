"""Inventory of this machine: its GPUs, and whether packages, programs and libraries are installed.

The GPUs are read from NVML, not from torch: this takes milliseconds and creates no CUDA context.
"""

import ctypes.util
import importlib.util
import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine.

    ``id`` is passed to the launcher: an index, or a UUID if CUDA_VISIBLE_DEVICES names one. ``uuid`` always identifies
    the device: in a container or a batch job, any GPU may have index 0.
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
    """Find the driver version and the GPUs that this process may use, in the order of CUDA_VISIBLE_DEVICES."""
    return ask_driver(_machine) or Machine()


def _machine(pynvml) -> Machine:
    return Machine(tuple(_gpu(pynvml, id) for id in _visible_ids(pynvml)), pynvml.nvmlSystemGetDriverVersion())


def ask_driver(question: Callable[[Any], Any]) -> Any:
    """Return ``question(pynvml)``; ``None`` without driver, without its library, or without an answer to the first
    call: a machine without GPUs."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    try:
        return question(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _visible_ids(pynvml) -> list[str]:
    all_ids = [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return all_ids
    # As in CUDA, the first entry that is not a device ends the list.
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
    """Return NVML's handle of a GPU; ``id`` is ``Gpu.id``."""
    return pynvml.nvmlDeviceGetHandleByIndex(int(id)) if id.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(id)


def used_bytes(ids: Sequence[str]) -> list[int]:
    """Return the bytes that the driver has given out now on each of these GPUs, to all processes together."""
    pynvml = _nvml()
    return [pynvml.nvmlDeviceGetMemoryInfo(nvml_handle(pynvml, id)).used for id in ids]


@cache
def _nvml():
    """Return NVML, initialised once for the life of this process: to initialise it takes longer than all queries."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml
