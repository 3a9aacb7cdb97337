"""Readings of the driver's figure for a GPU, before and after what takes memory outside torch's allocator appears.

A process has a CUDA context, NCCL's communicators, cuBLAS's handles and the code of kernels, which the driver loads
when they first run. None of them can be asked for its size; each is what the driver's figure grew by while it appeared.
"""

import contextlib
import os
import time
from typing import Any

import torch

from .nvml import Nvml


class DriverReadings:
    """Of each GPU of this process: a reading whenever the memory outside the allocator has changed.

    Create it before the process uses a GPU: it reads what is in use on all GPUs of the machine by then.
    """

    def __init__(self):
        self._nvml: Nvml | None = None
        self._before: dict[int, dict[str, Any]] = {}  # by NVML's index
        self._free: dict[int, int] = {}  # device -> free bytes at the last reading
        self._readings: dict[int, list[dict[str, Any]]] = {}
        self._running: list[dict[str, Any]] = []  # readings in the part of the run that has not ended
        with contextlib.suppress(OSError):
            self._nvml = Nvml()
            for index in range(self._nvml.count()):
                used, processes = self._nvml.used_bytes(index), self._nvml.processes(index)
                self._before[index] = {"used_bytes": used, "processes": processes}

    def read(self, module: str, call: str | None = None) -> None:
        """Read the current device, if the process has a context on it. Costs 10 microseconds if nothing has changed.

        ``module`` and ``call``: what ran since the reading before.
        """
        device = torch.cuda.current_device()
        readings = self._readings.get(device)
        if readings is None:
            if not torch._C._cuda_hasPrimaryContext(device):  # memlab makes none
                return
            readings = self._readings[device] = []
        now = time.time_ns() // 1000
        free, total = torch.cuda.mem_get_info(device)
        if free != self._free.get(device):
            self._free[device] = free
            reserved = torch._C._cuda_memoryStats(device)["reserved_bytes"]["all"]["current"]
            if not readings or total - free - reserved != readings[-1]["used_bytes"] - readings[-1]["reserved_bytes"]:
                reading = {"time_us": now, "phase": None, "module": module, "call": call}
                reading |= {"used_bytes": total - free, "reserved_bytes": reserved}
                readings.append(reading | {"processes": self._processes(device)})
                self._running.append(readings[-1])
        readings[-1]["until_us"] = now

    def name_phase(self, phase: str | None) -> None:
        """Name the phase of the readings since the last call: it is known when a part of the run ends."""
        while self._running:
            self._running.pop()["phase"] = phase

    def to_json(self, device: int) -> dict[str, Any]:
        """Return ``before`` and ``readings``.

        ``before``: ``used_bytes`` and ``processes`` before this process used the GPU; ``None``: not known.

        A reading has ``time_us`` (since the epoch) and ``until_us`` (of the last look that found no change), ``phase``,
        ``module`` and ``call``, ``used_bytes`` on the whole GPU, ``reserved_bytes`` of torch's allocator, and
        ``processes``: id of each process on the GPU -> bytes.
        """
        before = None if self._nvml is None else self._before.get(torch.cuda._get_nvml_device_index(device))
        return {"pid": os.getpid(), "before": before, "readings": self._readings.get(device, [])}

    def _processes(self, device: int) -> dict[int, int]:
        with contextlib.suppress(OSError):
            if self._nvml is not None:
                return self._nvml.processes(torch.cuda._get_nvml_device_index(device))
        return {}
