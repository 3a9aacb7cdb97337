"""One point of a launch: what its meters are told to do, and the figures that memlab's own training adds to theirs."""

import math
import os
from typing import Any

import torch

from memlab.core.config import Config
from memlab.meters.options import PROFILED_STEPS, PROFILER_WARMUP, Options
from memlab.runs.folder import RunFolder
from memlab.runs.step_rows import highest
from memlab.training.data import Shape
from memlab.training.driver import Driver


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

    def options(self, is_first: bool) -> Options:
        """Return what the meters are to do. ``is_first``: the point is the first of its launch. Its record has the time
        that the start of the launch took. It alone has a memory history, which slows every allocation: from before the
        rank uses its GPU until the end of the warm-up."""
        measure = self.config.measure
        has_history = is_first and measure.snapshot and self.config.hardware.device == "cuda"
        return Options(
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
