"""The driver's figures of this process and its GPU. A figure is ``None`` if the driver does not tell it (containers,
MIG), and on a CPU."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch

from memlab.meters.driver_readings import index_in_nvml
from memlab.meters.nvml import Nvml


class Driver:
    def __init__(self, device: int | None):
        """``device``: index of the GPU in this process; ``None``: there is none."""
        self._device = device
        self._nvml: Nvml | None = None
        self._gpu = None if device is None else index_in_nvml(device)
        if self._gpu is not None:
            with contextlib.suppress(OSError):
                self._nvml = Nvml()

    def synchronize(self) -> None:
        if self._device is not None:
            torch.cuda.synchronize(self._device)

    def used_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes in use on the whole GPU, and those of this process."""
        if self._device is None:
            return None, None
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free, self._ask(lambda nvml, gpu: nvml.processes(gpu).get(os.getpid()))

    def energy_joules(self) -> float | None:
        """Return the energy that the GPU has used so far, a running total."""
        return self._ask(lambda nvml, gpu: nvml.energy_joules(gpu))

    def _ask(self, question: Callable[[Nvml, int], Any]) -> Any:
        with contextlib.suppress(OSError):
            if self._nvml is not None and self._gpu is not None:
                return question(self._nvml, self._gpu)
        return None
