"""Replay of a trace through the allocator: peaks by phase, the event of each peak, and memory over one step."""

from dataclasses import dataclass, field, replace
from typing import Any

from memlab.core.record import BEFORE_STEPS, Phase
from memlab.simulator.allocator import CachingAllocator, Options, OutOfMemory
from memlab.simulator.trace.events import Alloc, BeginPhase, BeginPoint, EmptyCache, Synchronize, of_kinds
from memlab.simulator.trace.trace_format import Trace, apply


@dataclass(frozen=True)
class PieceMemory:
    """Memory between two BeginPhase events, in bytes: allocated at the end, and peaks. ``retries``: times that the
    allocator gave back its cache until the end, since the start of the process."""

    end_allocated: int
    peak_allocated: int
    peak_active: int
    peak_reserved: int
    retries: int


@dataclass
class Replay:
    """Result of a replay, in bytes. ``oom`` is set when a request found no room; the replay ends there."""

    peak_allocated: int = 0
    peak_active: int = 0
    peak_reserved: int = 0
    num_alloc_retries: int = 0
    phases: dict[str, Phase] = field(default_factory=dict)
    pieces: list[PieceMemory] = field(default_factory=list)  # one for each BeginPhase event
    peak_phase: str = ""
    peak_event: int = 0  # index of the event at the run's allocated peak
    peak_events: dict[str, int] = field(default_factory=dict)  # phase -> index of the event at its allocated peak
    oom: dict[str, Any] | None = None
    curve: list[tuple[int, int, int]] = field(default_factory=list)  # last step: event, allocated, reserved
    curve_phases: list[tuple[int, str]] = field(default_factory=list)


def replay(trace: Trace, options: Options, capacity: int, release_delay: int = 0, with_curve: bool = False) -> Replay:
    """Run the events of ``trace`` through an allocator of ``capacity`` bytes.

    ``release_delay``: of Free events that carry none, as in :class:`CachingAllocator`. If the trace is a launch of
    several points (traces/shared_launch.py), the result is the last point's. ``with_curve``: keep memory over the last
    step.
    """
    return replay_points(trace, options, capacity, release_delay, with_curve)[-1]


def replay_points(
    trace: Trace, options: Options, capacity: int, release_delay: int = 0, with_curve: bool = False
) -> list[Replay]:
    """Replay a launch as :func:`replay` does, with a result for each point. An out-of-memory ends the launch and the
    list."""
    allocator = CachingAllocator(options, capacity, release_delay)
    runner = _Runner(trace, allocator, trace.steps[-1] if with_curve and trace.steps else len(trace.events))
    try:
        runner.run()
    except OutOfMemory as error:
        runner.result.oom = {"phase": runner.phase, "requested_bytes": error.requested_bytes, "event": runner.index}
    runner.close_point()
    return runner.results


def as_plain_training(trace: Trace) -> Trace:
    """Return a trace without what measuring adds before the first step: the cache is not emptied, and peaks count from
    process start (``measure.protocol=cold``). A command's trace has nothing of the kind.

    Both events become no-ops, so that indices stay valid.
    """
    if (start := next((index for index, _ in of_kinds(trace.events, BeginPoint)), None)) is None:
        return trace
    assert isinstance(trace.events[start - 1], EmptyCache)
    nothing = Synchronize(0)
    return replace(trace, events=[*trace.events[: start - 1], nothing, nothing, *trace.events[start + 1 :]])


class _Runner:
    def __init__(self, trace: Trace, allocator: CachingAllocator, curve_from: int):
        """``curve_from``: index of the event from which the curve is kept."""
        self.trace, self.allocator = trace, allocator
        self.curve_from = curve_from
        self.index = 0
        self.phase = ""
        self.result = Replay()
        self.results: list[Replay] = []
        self.highest: dict[str, int] = {}  # allocated, by phase
        self.retries_before = 0
        self.steps_began = self.in_piece = False

    def run(self) -> None:
        allocator, result, highest = self.allocator, self.result, 0
        event: Any  # of the type that ``kind`` says
        for index, event in enumerate(self.trace.events):
            self.index, kind = index, type(event)
            apply(event, allocator)
            if kind is Alloc:
                if allocator.allocated > self.highest.get(self.phase, 0):
                    self.highest[self.phase] = allocator.allocated
                    result.peak_events[self.phase] = index
                    if allocator.allocated > highest:
                        highest = allocator.allocated
                        result.peak_event, result.peak_phase = index, self.phase
            elif kind is BeginPhase:
                self.close_phase()
                self.phase, self.in_piece = self.trace.phases[event.phase], True
                if self.phase and index >= self.curve_from:
                    result.curve_phases.append((index, self.phase))
            elif kind is BeginPoint:
                result, highest = self.begin_point(), 0
            if index >= self.curve_from:
                result.curve.append((index, allocator.allocated, allocator.reserved))

    def begin_point(self) -> Replay:
        """Start the result of a point, with new peaks. The phases before the first step are part of every point's
        result."""
        if self.steps_began:
            self.close_point()
        else:
            self.close_phase()
        self.steps_began = True
        built = {name: replace(phase) for name, phase in self.result.phases.items() if name in BEFORE_STEPS}
        events = {name: event for name, event in self.result.peak_events.items() if name in BEFORE_STEPS}
        self.result = Replay(phases=built, peak_events=events)
        self.highest = {}
        return self.result

    def close_point(self) -> None:
        self.close_phase()
        self.result.num_alloc_retries = self.allocator.num_alloc_retries - self.retries_before
        self.retries_before = self.allocator.num_alloc_retries
        self.results.append(self.result)

    def close_phase(self) -> None:
        allocator, result = self.allocator, self.result
        result.peak_allocated = max(result.peak_allocated, allocator.peak_allocated)
        result.peak_active = max(result.peak_active, allocator.peak_active)
        result.peak_reserved = max(result.peak_reserved, allocator.peak_reserved)
        if self.in_piece:
            piece = PieceMemory(
                allocator.allocated,
                allocator.peak_allocated,
                allocator.peak_active,
                allocator.peak_reserved,
                allocator.num_alloc_retries,
            )
            result.pieces.append(piece)
        if self.phase:
            phase = result.phases.setdefault(self.phase, Phase(0, 0, 0))
            phase.peak_allocated_bytes = max(phase.peak_allocated_bytes, allocator.peak_allocated)
            phase.peak_reserved_bytes = max(phase.peak_reserved_bytes, allocator.peak_reserved)
            phase.end_allocated_bytes = allocator.allocated
        allocator.reset_peaks()
