"""A trace through the allocator: peaks by phase, what the memory at the peak is for, and its course over one step."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from memlab.predict.allocator import CachingAllocator, Options, OutOfMemory
from memlab.predict.events import ALLOC, EMPTY, FREE, PHASE, START, SYNC, USE, Trace
from memlab.record import Phase

CURVE_POINTS = 500


@dataclass
class Replay:
    """Bytes. ``oom`` is set, and everything else ends there, when a request found no room."""

    peak_allocated: int = 0
    peak_active: int = 0
    peak_reserved: int = 0
    num_alloc_retries: int = 0
    phases: dict[str, Phase] = field(default_factory=dict)
    peak_phase: str = ""
    peak_event: int = 0
    oom: dict[str, Any] | None = None
    course: list[tuple[int, int, int]] = field(default_factory=list)  # event, allocated, reserved; of the last step


def replay(trace: Trace, options: Options, capacity: int, lag: int = 0, course: bool = False) -> Replay:
    """Run the events of ``trace`` through an allocator of ``capacity`` bytes; ``lag`` as in :class:`CachingAllocator`."""
    allocator = CachingAllocator(options, capacity, lag)
    result = Replay()
    runner = _Runner(trace, allocator, result, _last_step(trace) if course else len(trace.events))
    try:
        runner.run()
    except OutOfMemory as error:
        result.oom = {"phase": runner.phase, "requested_bytes": error.requested_bytes, "event": runner.index}
    runner.close_phase()
    result.num_alloc_retries = allocator.num_alloc_retries
    return result


class _Runner:
    def __init__(self, trace: Trace, allocator: CachingAllocator, result: Replay, course_from: int):
        self.trace, self.allocator, self.result = trace, allocator, result
        self.course_from = course_from
        self.index = 0
        self.phase = ""

    def run(self) -> None:
        allocator, highest = self.allocator, 0
        for index, event in enumerate(self.trace.events):
            self.index, kind = index, event[0]
            if kind == ALLOC:
                allocator.malloc(event[1], event[2], event[3])
                if allocator.allocated > highest:
                    highest = allocator.allocated
                    self.result.peak_event, self.result.peak_phase = index, self.phase
            elif kind == FREE:
                allocator.free(event[1])
            elif kind == USE:
                allocator.record_stream(event[1], event[2])
            elif kind == SYNC:
                allocator.synchronize()
            elif kind == EMPTY:
                allocator.empty_cache()
            elif kind == PHASE:
                self.close_phase()
                self.phase = self.trace.phases[event[1]]
            elif kind == START:
                self.close_phase()
                highest = self.result.peak_allocated = self.result.peak_active = self.result.peak_reserved = 0
            if index >= self.course_from:
                self.result.course.append((index, allocator.allocated, allocator.reserved))

    def close_phase(self) -> None:
        allocator, result = self.allocator, self.result
        result.peak_allocated = max(result.peak_allocated, allocator.peak_allocated)
        result.peak_active = max(result.peak_active, allocator.peak_active)
        result.peak_reserved = max(result.peak_reserved, allocator.peak_reserved)
        if self.phase:
            phase = result.phases.setdefault(self.phase, Phase())
            phase.peak_allocated_bytes = max(phase.peak_allocated_bytes, allocator.peak_allocated)
            phase.peak_reserved_bytes = max(phase.peak_reserved_bytes, allocator.peak_reserved)
            phase.end_allocated_bytes = allocator.allocated
        allocator.reset_peaks()


def _last_step(trace: Trace) -> int:
    """Where the last optimizer step's forward begins."""
    steps = [index for index, event in enumerate(trace.events) if event[0] == PHASE]
    names = [trace.phases[trace.events[index][1]] for index in steps]
    before = max((i for i, name in enumerate(names[:-1]) if name.endswith("optimizer_step")), default=-1)
    return steps[before + 1]
