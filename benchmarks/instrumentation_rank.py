"""Rank process of benchmarks.instrumentation: memlab's own session, in which half of the blocks run without meters."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.instrumentation import BARE, METERED
from memlab.attach.host import peak_resident_bytes, reset_peak_resident
from memlab.files.json_file import write_json
from memlab.runs.folder import RunFolder
from memlab.worker.__main__ import close_process_groups, leave
from memlab.worker.point import Point
from memlab.worker.session import ENGINE_PHASES, Session


class Bare(Point):
    """Point that begins like any other and then only counts its steps."""

    def begin(self) -> None:
        super().begin()
        self.device.memory.pause()

    def step_end(self) -> None:
        self.step += 1


class Comparison(Session):
    def __init__(self, folders: Sequence[RunFolder]):
        super().__init__(folders, rank=0)
        for index, (folder, point) in enumerate(zip(folders, self.points, strict=True)):
            if folder.path.name.endswith(BARE):
                self.points[index] = Bare(folder, point.config, point.rank, point.device)
        self.blocks: list[dict[str, Any]] = []

    def meter_the_meter(self) -> None:
        """Add up the host's time inside the meters, an upper bound of what the meters add to a step."""
        enter = self.device.memory.enter

        def timed_enter(phase: str | None) -> None:
            began = time.perf_counter()
            enter(phase)
            self.in_meters += time.perf_counter() - began

        self.in_meters = 0.0
        self.device.memory.enter = timed_enter

    def engine_is_ready(self, engine: torch.nn.Module) -> None:
        self.meter_the_meter()
        bare = {method: getattr(engine, method) for method in ENGINE_PHASES}
        super().engine_is_ready(engine)
        self.methods = {BARE: bare, METERED: {method: getattr(engine, method) for method in ENGINE_PHASES}}

    def add_loss(self, loss: torch.Tensor) -> None:
        if self.kind == METERED:
            super().add_loss(loss)

    @property
    def kind(self) -> str:
        return BARE if isinstance(self.point, Bare) else METERED

    def step_begin(self) -> None:
        if self.point.step == 0:
            self.clock = []
            for method, function in self.methods[self.kind].items():
                setattr(self.engine, method, function)
        super().step_begin()
        if self.point.step >= self.config.measure.warmup:
            if not self.clock:
                reset_peak_resident()
                self.in_meters = 0.0
            self.clock.append(self.device.mark())

    def step_end(self) -> None:
        point, kind = self.point, self.kind
        super().step_end()
        if point.is_done:
            self.blocks.append(self.figures(point, kind))

    def figures(self, point: Point, kind: str) -> dict[str, Any]:
        """Return the figures of a block, in seconds and bytes. The last step has no time: no step begins after it."""
        memory, on_gpu = self.device.memory, self.device.torch_device.type == "cuda"
        seconds = self.device.seconds_between
        return {
            "kind": kind,
            "step_seconds": [seconds(*step) for step in zip(self.clock, self.clock[1:], strict=False)],
            "meter_seconds_per_step": self.in_meters / self.config.measure.steps,
            "peak_bytes": memory.peak_allocated if on_gpu else peak_resident_bytes(),
            "peak_reserved_bytes": memory.peak_reserved if on_gpu else None,
        }


def main() -> None:
    result, *folders = sys.argv[1:]
    session = Comparison([RunFolder(folder) for folder in folders])
    session.run()
    write_json(Path(result), session.blocks)
    close_process_groups()
    leave(0)


if __name__ == "__main__":
    main()
