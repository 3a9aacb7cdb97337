"""Readings of the driver's figure for a GPU, before and after what takes memory outside torch's allocator appears.

A process has a CUDA context, NCCL's communicators, cuBLAS's handles and the code of kernels, which the driver loads
when they first run. None of them can be asked for its size; each is what the driver's figure grew by while it appeared.
"""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from .nvml import Nvml


class DriverReadings:
    """Of each GPU of this process: a reading whenever the memory outside the allocator has changed."""

    def __init__(self):
        self._nvml: Nvml | None = None
        self._before: dict[int, dict[str, Any]] = {}  # by NVML's index
        self._free: dict[int, int] = {}  # device -> free bytes at the last reading
        self._readings: dict[int, list[dict[str, Any]]] = {}
        self._running: list[dict[str, Any]] = []  # readings in the part of the run that has not ended
        self._devices = range(0)

    def begin(self) -> None:
        """Read what is in use on all GPUs of the machine. Call it when the process is about to use a GPU, and has no
        context yet."""
        self._devices = range(torch.cuda.device_count())
        with contextlib.suppress(OSError):
            self._nvml = Nvml()
            for index in range(self._nvml.count()):
                used, processes = self._nvml.used_bytes(index), self._nvml.processes(index)
                self._before[index] = {"used_bytes": used, "processes": processes}

    @property
    def has_context(self) -> bool:
        """Whether the process had a context on a GPU at the last look."""
        return bool(self._readings)

    def read(self, module: str, call: str | None = None) -> None:
        """Read the GPUs on which the process has a context; memlab makes none.

        Costs 10 microseconds for each of these GPUs if nothing has changed. ``module`` and ``call``: what ran since the
        reading before.
        """
        for device in self._devices:
            if device in self._readings or torch._C._cuda_hasPrimaryContext(device):
                self._read(device, module, call)

    def _read(self, device: int, module: str, call: str | None) -> None:
        readings = self._readings.setdefault(device, [])
        now = time.time_ns() // 1000
        free, total = torch.cuda.mem_get_info(device)
        if free != self._free.get(device):
            self._free[device] = free
            reserved = torch._C._cuda_memoryStats(device)["reserved_bytes"]["all"]["current"]
            if not readings or total - free - reserved != readings[-1]["used_bytes"] - readings[-1]["reserved_bytes"]:
                reading = {"time_us": now, "phase": None, "module": module, "call": call}
                reading |= {"used_bytes": total - free, "reserved_bytes": reserved}
                processes = ask_nvml(self._nvml, index_in_nvml(device), lambda nvml, gpu: nvml.processes(gpu))
                readings.append(reading | {"processes": processes or {}})
                self._running.append(readings[-1])
        readings[-1]["until_us"] = now

    def name_phase(self, phase: str | None) -> None:
        """Name the phase of the readings since the last call: it is known when a part of the run ends."""
        while self._running:
            self._running.pop()["phase"] = phase

    def to_json(self) -> dict[str, Any]:
        """Return ``pid`` and ``devices``: index in this process -> ``gpu``, ``before`` and ``readings``, of each GPU on
        which it has a context.

        ``gpu``: NVML's index. ``before``: ``used_bytes`` and ``processes`` before this process used a GPU. ``None``:
        not known.

        A reading has ``time_us`` (since the epoch) and ``until_us`` (of the last look that found no change), ``phase``,
        ``module`` and ``call``, ``used_bytes`` on the whole GPU, ``reserved_bytes`` of torch's allocator, and
        ``processes``: id of each process on the GPU -> bytes.
        """
        return {"pid": os.getpid(), "devices": {device: self._of(device) for device in self._readings}}

    def _of(self, device: int) -> dict[str, Any]:
        gpu = index_in_nvml(device)
        return {
            "gpu": gpu,
            "before": None if gpu is None else self._before.get(gpu),
            "readings": self._readings[device],
        }


def ask_nvml(nvml: Nvml | None, gpu: int | None, question: Callable[[Nvml, int], Any]) -> Any:
    """Return what the driver answers about a GPU; ``None`` if it does not tell, without a driver, and for a part of a
    GPU. ``gpu``: NVML's index."""
    with contextlib.suppress(OSError):
        if nvml is not None and gpu is not None:
            return question(nvml, gpu)
    return None


def index_in_nvml(device: int) -> int | None:
    """Return NVML's index of a GPU; ``None`` for a part of one, as in ``CUDA_VISIBLE_DEVICES=MIG-...``."""
    try:
        return torch.cuda._get_nvml_device_index(device)
    except (RuntimeError, IndexError):  # IndexError: of no visible GPU does torch know the index
        return None
