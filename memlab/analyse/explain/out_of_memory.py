"""The request that failed when memory ran out: what was free then, who held what, and the last events before it."""

from dataclasses import dataclass
from enum import Enum

from memlab.analyse.explain.phases import Part
from memlab.analyse.explain.snapshot_trace import FailedRequest, MeasuredTrace
from memlab.core.sizes import MIB
from memlab.predict.memory.ledger import Moment
from memlab.predict.trace.events import Alloc, EmptyCache, Free
from memlab.predict.trace.trace_format import Site

LAST = 12
"""Events before the failure that are told."""

LEAST = MIB
"""Least size of a request that is told, in bytes."""


class Action(Enum):
    REQUESTED = "requested"
    FREED = "freed"
    GIVEN_BACK = "given back to the device"


@dataclass(frozen=True)
class LastEvent:
    """``site``: of the request; ``None`` for segments that the allocator gave back. ``seconds``: before the failure;
    ``None`` if no clock is known."""

    action: Action
    nbytes: int
    site: Site | None
    seconds: float | None


@dataclass(frozen=True)
class OutOfMemory:
    """Sizes in bytes. ``part``: of the run, in which the request failed. ``holes``: free pieces in the allocator's
    segments, the largest first; segments without a block in use had gone back to the device. ``moment``: who held what
    when the request failed. ``last``: in order."""

    request: FailedRequest
    part: Part
    holes: tuple[int, ...]
    moment: Moment
    last: tuple[LastEvent, ...]

    @property
    def free(self) -> int:
        """All that was free: on the device and in the holes."""
        return self.request.free_on_device + sum(self.holes)

    @property
    def is_fragmentation(self) -> bool:
        """Whether the request would have fitted if all free memory had been one piece."""
        return self.free >= self.request.nbytes


def last_events(measured: MeasuredTrace, request: FailedRequest) -> tuple[LastEvent, ...]:
    """Return the last requests, frees and returns of segments before the failure, without requests below ``LEAST``."""
    events, reserved = measured.trace.events, measured.reserved
    requests = {event.key: event for event in events if isinstance(event, Alloc)}
    found: list[LastEvent] = []
    for index in range(len(events) - 1, 0, -1):
        event = events[index]
        seconds = None if measured.seconds is None else request.seconds - measured.seconds[index]
        if isinstance(event, EmptyCache):  # also by the allocator itself, before it gives up
            found.append(LastEvent(Action.GIVEN_BACK, reserved[index - 1] - reserved[index], None, seconds))
        elif isinstance(event, Alloc | Free):
            of = requests[event.key]
            action = Action.REQUESTED if isinstance(event, Alloc) else Action.FREED
            if of.nbytes >= LEAST:
                found.append(LastEvent(action, of.nbytes, measured.trace.sites[of.site], seconds))
        if len(found) == LAST:
            break
    return tuple(reversed(found))
