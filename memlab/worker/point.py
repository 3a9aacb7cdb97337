"""One point in one rank: timing of its steps, and its rank file."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from memlab.attach.clock import Mark, seconds
from memlab.attach.host import resident_bytes
from memlab.attach.host_probe import probe_host
from memlab.attach.memory import pinned_peak_bytes
from memlab.attach.options import PROFILED_STEPS, PROFILER_WARMUP
from memlab.attach.profiler import StepsProfiler
from memlab.attach.steps import since
from memlab.core.config import Config
from memlab.core.record import RankResult
from memlab.files.json_file import write_json
from memlab.runs.folder import RunFolder
from memlab.runs.operator_profile import keep_operators
from memlab.runs.step_rows import highest
from memlab.worker.data import Shape
from memlab.worker.memory import CpuDevice, CudaDevice


class Point:
    """A point in one rank. Call ``begin``, then ``step_end`` after each step, then ``write``.

    With ``measure.profile``, all ranks run further steps once everything is measured, and rank 0 profiles them.
    """

    def __init__(self, folder: RunFolder, config: Config, rank: int, device: CpuDevice | CudaDevice):
        self.folder, self.config, self.rank, self.device = folder, config, rank, device
        self.num_steps = config.measure.warmup + config.measure.steps
        self.num_profiled = PROFILER_WARMUP + PROFILED_STEPS if config.measure.profile else 0
        profiles = config.measure.profile and rank == 0
        self.profiler = StepsProfiler(lambda: folder.rank_file(rank)) if profiles else None
        self.result: RankResult | None = None  # once everything is measured
        self.step = 0  # index of the running step
        self.marks: list[tuple[Mark, Mark]] = []  # begin and end of each step, on the device's clock
        self.losses: list[torch.Tensor] = []  # one per forward, on the device: reading them makes the host wait
        self.used: list[tuple[int | None, int | None]] = []
        self.energy: tuple[float | None, float | None] = (None, None)
        self.on_warm: Callable[[], None] = lambda: None  # called when the warm-up steps are over
        self.facts: dict[str, Any] = {}  # set by the session: versions, parameters, FLOPs
        self.timing: dict[str, float] = {}
        self.counted_before: tuple[int | None, int | None] = (None, None)

    @property
    def shape(self) -> Shape:
        batch = self.config.batch
        steps = self.num_steps + self.num_profiled
        return Shape(batch.micro, self.config.seq_len.tokens, batch.accumulation * steps)

    @property
    def is_measured(self) -> bool:
        return self.step >= self.num_steps

    @property
    def is_done(self) -> bool:
        return self.step == self.num_steps + self.num_profiled

    def phase(self, name: str) -> str:
        """Name the phase with the prefix ``first_`` in the first step, which differs from the later steps.

        The first step creates the optimizer states, and ZeRO-3 does not prefetch in it.
        """
        return f"first_{name}" if self.step == 0 else name

    def begin(self) -> None:
        if self.config.measure.protocol == "cold":
            self.device.memory.enter(None)  # keep the peaks so far and the allocator's cache
        else:
            self.device.memory.start_over()
        self.began = time.perf_counter()
        self.counted_before = self.device.memory.retries_and_ooms()
        self.start = self.device.mark()

    def step_end(self) -> None:
        """End a step. Its time starts at the end of the previous step: it includes data loading and Trainer's work."""
        end = self.device.mark()
        self.marks.append((self.start, end))
        self.start = end
        self.step += 1
        warmup = self.config.measure.warmup
        if self.step <= warmup or self.is_measured:
            self.used.append(self.device.used_bytes())
        if self.step == warmup:
            self.device.memory.pause()
            self.on_warm()
            self.energy = (self.device.energy_joules(), None)
        if self.is_measured:
            self.device.synchronize()
            self.energy = (self.energy[0], self.device.energy_joules())
            self.timing["train_s"] = time.perf_counter() - self.began
        elif self.step <= warmup:
            self.start = self.device.mark()  # excludes the time of the readings above from the next step

    def all_is_measured(self) -> None:
        """Keep the result: what follows does not change it. Begin to profile if that was asked for."""
        self.result = self._result("ok", None, None)
        if self.profiler:
            self.profiler.begin()

    def profiled_step_end(self) -> None:
        self.step += 1
        if self.profiler:
            self.profiler.step_ends()
            if self.is_done:
                keep_operators(self.folder, self.rank)

    def write(self, status: str = "ok", reason: str | None = None, oom: dict[str, Any] | None = None) -> None:
        """Write this rank's file when the point ends, also after a failure. A failure while steps are profiled leaves
        the result as it is."""
        result = self.result or self._result(status, reason, oom)
        if result.status == "ok" and os.environ["LOCAL_RANK"] == "0":
            result.host_probe = probe_host()
        write_json(self.folder.rank_file(self.rank), asdict(result))
        self.losses.clear()  # each holds a block of device memory

    def _result(self, status: str, reason: str | None, oom: dict[str, Any] | None) -> RankResult:
        memory = self.device.memory
        memory.fold()
        self.used.append(self.device.used_bytes())
        took = [seconds(*marks) for marks in self.marks] if status == "ok" else []  # the device has reached all marks
        warmup = self.config.measure.warmup
        losses = self._losses() if status == "ok" else []
        bad = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if bad is not None:
            status, reason = "failed", f"the loss was not finite at step {bad}"
        if oom is not None:
            oom = {"phase": memory.current, "step": self.step, **oom}
        device_used, process_used = zip(*self.used, strict=True)
        before, after = self.energy
        retries, ooms = map(since, self.counted_before, memory.retries_and_ooms())
        return RankResult(
            rank=self.rank,
            device=str(self.device.torch_device),
            device_name=self.device.name,
            memory_source=memory.source,
            status=status,
            reason=reason,
            device_total_bytes=self.device.total_bytes,
            peak_allocated_bytes=memory.peak_allocated,
            peak_active_bytes=memory.peak_active,
            peak_reserved_bytes=memory.peak_reserved,
            device_used_bytes=highest(device_used),
            process_used_bytes=highest(process_used),
            host_rss_bytes=resident_bytes(),
            host_peak_bytes=memory.host_peak(),
            host_pinned_bytes=pinned_peak_bytes(),
            num_alloc_retries=retries,
            num_ooms=ooms,
            phases=memory.phases,
            warmup_seconds=took[:warmup],
            step_seconds=took[warmup:],
            losses=list(losses),
            energy_joules=None if before is None or after is None else after - before,
            oom=oom,
            timing=self.timing,
            **self.facts,
        )

    def _losses(self) -> list[float]:
        """Return one loss per step: the sum over its micro batches, whose losses Trainer has already scaled."""
        values = [float(loss) for loss in self.losses]
        size = self.config.batch.accumulation
        return [sum(values[i : i + size]) for i in range(0, len(values), size)]
