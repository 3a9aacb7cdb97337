"""The request that failed when memory ran out: what was free then, who held what, and the last events before it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from memlab.analyse.explain.accounting import Share
from memlab.analyse.explain.phases import Part, parts_of
from memlab.analyse.explain.snapshot_trace import PartEnd, UnservedRequest
from memlab.core.sizes import MIB
from memlab.prediction.memory.ledger import Moment
from memlab.simulator.allocator import RecordingAllocator
from memlab.simulator.trace.events import Alloc, EmptyCache, Free
from memlab.simulator.trace.trace_format import Site, Trace

LAST = 12
"""Events, or parts of the run, before the failure that are told."""

LEAST = MIB
"""Least size of a request that is told, in bytes."""


REQUESTED, FREED, GIVEN_BACK = "requested", "freed", "given back to the device"
"""What a :class:`LastEvent` did, in words."""


@dataclass(frozen=True)
class LastEvent:
    """``action``: one of the words above. ``site``: of the request; ``None`` for segments that the allocator gave back.
    ``seconds``: before the failure; ``None`` if no clock is known."""

    action: str
    nbytes: int
    site: Site | None
    seconds: float | None


class LastPart(NamedTuple):
    """Part of the run before the failure. Sizes in bytes: allocated at its end, and its peaks of allocated and reserved
    memory. ``seconds``: from its end to the failure."""

    phase: str
    step: int | None
    seconds: float
    allocated: int
    peak_allocated: int
    peak_reserved: int


@dataclass(frozen=True)
class OutOfMemoryExplained:
    """Sizes in bytes. ``part``: of the run, in which the request failed. ``holes``: free pieces in the allocator's
    segments, the largest first; segments without a block in use had gone back to the device. ``moment``: who held what
    when the request failed, and ``used``: the memory of the device then, as a tree. ``last``: in order; without a
    recorded history empty, and ``last_parts`` are known instead. ``times``: how often the rank ran out of memory; this
    is the last time. ``goes_on``: whether the run went on after it."""

    request: UnservedRequest
    part: Part
    holes: tuple[int, ...]
    moment: Moment
    used: Share
    last: tuple[LastEvent, ...]
    last_parts: tuple[LastPart, ...] | None = None
    times: int = 1
    goes_on: bool = False

    @property
    def free(self) -> int:
        """All that was free: on the device and in the holes."""
        return self.request.free_on_device + sum(self.holes)

    @property
    def is_fragmentation(self) -> bool:
        """Whether the request would have fitted if all free memory had been one piece."""
        return self.free >= self.request.nbytes


def failed_replay(
    trace: Trace, reserved: Sequence[int], moment: Moment, used: Share, allocator: RecordingAllocator
) -> OutOfMemoryExplained:
    """Describe the request that ended a replay. ``reserved``: after each event before it, in bytes. ``moment``,
    ``used`` and ``allocator``: as the request left them."""
    request = trace.events[moment.event]
    assert isinstance(request, Alloc)
    failed = UnservedRequest(request.nbytes, allocator.capacity - allocator.reserved, trace.sites[request.site])
    free = (block.size for blocks in allocator.segments() for block in blocks if block.is_free)
    part = parts_of(trace, moment.event + 1)[-1]
    last = last_events(replace(trace, events=trace.events[: moment.event]), reserved)
    return OutOfMemoryExplained(failed, part, tuple(sorted(free, reverse=True)), moment, used, last)


def last_parts(ends: Sequence[PartEnd], failed_at_us: float) -> tuple[LastPart, ...]:
    """Return the last parts of the run, those of one phase and step together. ``failed_at_us``: when the request
    failed, in microseconds of the host's clock."""
    found: list[LastPart] = []
    for (phase, step), members in groupby(ends, itemgetter("phase", "step")):
        own = list(members)
        seconds = (failed_at_us - 1e6 * own[-1]["ended_at"]) / 1e6
        peaks = (max(map(itemgetter(key), own)) for key in ("peak_allocated", "peak_reserved"))
        found.append(LastPart(phase, step, seconds, own[-1]["allocated"], *peaks))
    return tuple(found[-LAST:])


def last_events(
    trace: Trace, reserved: Sequence[int], seconds_before: Sequence[float] | None = None
) -> tuple[LastEvent, ...]:
    """Return the last requests, frees and returns of segments of a history, without requests below ``LEAST``.

    ``reserved``: after each event, in bytes. ``seconds_before``: of each event, before the failure.
    """
    events = trace.events
    requests = {event.key: event for event in events if isinstance(event, Alloc)}
    found: list[LastEvent] = []
    for index in range(len(events) - 1, 0, -1):
        event = events[index]
        seconds = None if seconds_before is None else seconds_before[index]
        if isinstance(event, EmptyCache):  # also by the allocator itself, before it gives up
            found.append(LastEvent(GIVEN_BACK, reserved[index - 1] - reserved[index], None, seconds))
        elif isinstance(event, Alloc | Free):
            of = requests[event.key]
            action = REQUESTED if isinstance(event, Alloc) else FREED
            if of.nbytes >= LEAST:
                found.append(LastEvent(action, of.nbytes, trace.sites[of.site], seconds))
        if len(found) == LAST:
            break
    return tuple(reversed(found))
