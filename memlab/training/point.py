"""One point of a launch: what its meters are told to do, and the figures that memlab's own training adds to theirs."""

import contextlib
import math
import os
from typing import Any

import torch

from memlab.core.config import Config
from memlab.meters.driver_readings import ask_nvml, index_in_nvml
from memlab.meters.nvml import Nvml
from memlab.meters.options import PROFILED_STEPS, PROFILER_WARMUP, MeterOptions
from memlab.runs.folder import RunFolder
from memlab.runs.step_rows import highest
from memlab.training.data import Shape


class Driver:
    """The driver's figures of this process and its GPU. A figure is ``None`` if the driver does not tell it
    (containers, MIG), and on a CPU."""

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
        return total - free, ask_nvml(self._nvml, self._gpu, lambda nvml, gpu: nvml.processes(gpu).get(os.getpid()))

    def energy_joules(self) -> float | None:
        """Return the energy that the GPU has used so far, a running total."""
        return ask_nvml(self._nvml, self._gpu, lambda nvml, gpu: nvml.energy_joules(gpu))


class Point:
    """With ``measure.profile``, all ranks run further steps once everything is measured, and rank 0 profiles them."""

    def __init__(self, folder: RunFolder, config: Config, driver: Driver):
        self.folder, self.config, self.driver = folder, config, driver
        self.num_measured = config.measure.warmup + config.measure.steps
        self.num_steps = self.num_measured + (PROFILER_WARMUP + PROFILED_STEPS if config.measure.profile else 0)
        self.losses: list[torch.Tensor] = []  # one per forward, on the device: reading them makes the host wait
        self.used: list[tuple[int | None, int | None]] = []
        self.energy_before: float | None = None
        self.has_begun = self.is_measured = False

    @property
    def shape(self) -> Shape:
        batch = self.config.batch
        return Shape(batch.micro, self.config.seq_len.tokens, batch.accumulation * self.num_steps)

    def options(self, is_first: bool) -> MeterOptions:
        """Return what the meters are to do. ``is_first``: the point is the first of its launch. Its record has the time
        that the start of the launch took. It alone has a memory history, which slows every allocation: from before the
        rank uses its GPU until the end of the warm-up."""
        measure = self.config.measure
        has_history = is_first and measure.snapshot and self.config.hardware.device == "cuda"
        return MeterOptions(
            folder=str(self.folder),
            explain=measure.warmup if has_history else None,
            explain_ranks=tuple(measure.snapshot_ranks),
            profile=self.num_measured if measure.profile else None,
            started_at=float(os.environ["MEMLAB_STARTED_AT"]) if is_first else None,
            protocol=measure.protocol,
            warmup=measure.warmup,
        )

    def read_driver(self, step: int) -> dict[str, Any]:
        """Read the driver at the end of a step, from 1. Returns the figures that are known then: the energy of the
        measured steps after the last of them, which the GPU has done then."""
        if step == self.num_measured:
            self.driver.synchronize()
        self.used.append(self.driver.used_bytes())
        device_used, process_used = map(highest, zip(*self.used, strict=True))
        figures: dict[str, Any] = {"device_used_bytes": device_used, "process_used_bytes": process_used}
        energy = self.driver.energy_joules()
        if step == self.config.measure.warmup:
            self.energy_before = energy
        elif step == self.num_measured and energy is not None and self.energy_before is not None:
            figures["energy_joules"] = energy - self.energy_before
        return figures

    def step_losses(self) -> list[float | None]:
        """Return the loss of each step, the sum over its micro batches, whose losses Trainer has already scaled.
        ``None``: not finite. The tensors are let go: each holds a block of device memory."""
        values, size = [float(loss) for loss in self.losses], self.config.batch.accumulation
        self.losses.clear()
        sums = [sum(values[i : i + size]) for i in range(0, self.num_measured * size, size)]
        return [value if math.isfinite(value) else None for value in sums]
