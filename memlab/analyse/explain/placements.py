"""Blocks and segments of a replay as intervals: where each lay, and from which event to which.

Who holds what after any event, and which holes lie between, is then one pass over these intervals: an event is within
an interval from its ``begin`` to before its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.phases import Part, parts_of
from memlab.core.record import PREDICTED, Record
from memlab.prediction.memory import ledger
from memlab.prediction.time.calibrate import calibrations_of
from memlab.prediction.time.clocks import LOWER_BOUND, has_clocks
from memlab.prediction.time.step_intervals import event_seconds
from memlab.simulator.allocator import RecordingAllocator
from memlab.simulator.allocator.recording import Action
from memlab.simulator.trace.events import Alloc
from memlab.simulator.trace.trace_format import Trace, replayed


def event_times(rank: Explained, record: Record) -> Mapping[int, float]:
    """Return event (index in the trace) -> seconds on the host's clock, from the first known time on.

    Of a prediction, the last step has times; empty where there is no clock. ``record``: of the run of ``rank``.
    """
    if record.source != PREDICTED:
        return dict(enumerate(rank.history.seconds or ()))
    trace = rank.history.trace
    if not has_clocks(record.config, [trace]) or not trace.work:
        return {}
    calibration = calibrations_of(record.config).step
    return event_seconds(record.config, trace, LOWER_BOUND if calibration is None else calibration.costs)


ROUNDING = "rounding of blocks in use"
"""Row of :func:`by_kind` for what blocks hold beyond the requests, as in the accounting."""


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory after each event of a trace, in bytes. An out-of-memory ends the lists before the trace ends.

    ``seconds``: when each event happened, from the first one on; ``None`` if no clock is known. ``parts``: in order,
    without gaps. ``peak``: the first event after which most is allocated.
    """

    allocated: Sequence[int]
    reserved: Sequence[int]
    seconds: Sequence[float] | None
    parts: tuple[Part, ...]
    peak: int

    @property
    def peak_step(self) -> tuple[int, int]:
        """The events, from begin to before end, of the step that contains the peak; of the part, outside the steps."""
        at = next(part for part in self.parts if part.begin <= self.peak < part.end)
        own = [part for part in self.parts if part.step == at.step] if at.step is not None else [at]
        return own[0].begin, own[-1].end

    def sampled(self, begin: int, end: int, buckets: int) -> list[int]:
        """Return events that draw the same picture as all from ``begin`` to before ``end``: of each bucket the first,
        the ones with the least and the most allocated memory, and the one with the most reserved memory."""
        width = max(1, -(-(end - begin) // buckets))
        found = {end - 1} if end > begin else set()
        for start in range(begin, end, width):
            events = range(start, min(start + width, end))
            least, most = (choose(events, key=self.allocated.__getitem__) for choose in (min, max))
            found |= {start, least, most, max(events, key=self.reserved.__getitem__)}
        return sorted(found)


def timeline(rank: Explained) -> MemoryTimeline:
    """Replay the trace of a rank. The peak is the one of its explanation."""
    history = rank.history
    allocated, reserved = history.sizes()
    return MemoryTimeline(
        allocated, reserved, history.seconds, parts_of(history.trace, len(allocated)), rank.peak.event
    )


def by_kind(trace: Trace, events: Sequence[int], allocated: Sequence[int]) -> dict[str, list[int]]:
    """Return kind -> bytes after each of the ``events``, which are in order. The kinds, with :data:`ROUNDING`, add up
    to ``allocated`` then; the kind with the highest maximum comes first."""
    held = list(map(ledger.by_kind, ledger.holdings_at(trace, set(events)).values()))
    kinds = {kind: [sizes.get(kind, 0) for sizes in held] for kind in set().union(*held)}
    kinds[ROUNDING] = [allocated[event] - sum(sizes.values()) for event, sizes in zip(events, held, strict=True)]
    return {kind: kinds[kind] for kind in sorted(kinds, key=lambda kind: -max(kinds[kind], default=0))}


@dataclass
class PlacedBlock:
    """A request and the block that served it. ``nbytes``: as requested; ``size``: of the block, in bytes.

    ``freed``: the event by which the program freed it; ``reusable``: the one by which no side stream used it any more.
    """

    site: int  # index in ``Trace.sites``
    nbytes: int
    size: int
    address: int
    begin: int
    freed: int
    reusable: int


@dataclass
class PlacedSegment:
    """Memory that the device gave to the allocator: a segment of fixed size, or mapped pages of an expandable one.

    ``base``: address at which an expandable segment begins; of a fixed one, its own address. ``page``: bytes that an
    expandable segment maps at once; 0 for a fixed one, which goes back to the device as a whole.
    """

    address: int
    size: int
    base: int
    page: int
    begin: int
    end: int


class Placements:
    """Blocks and segments of a replay of a trace with a new ``allocator``. An out-of-memory ends it.

    ``events``: how many events were replayed, without the one that found no room; what is there after the last one
    ends at this number.
    """

    def __init__(self, trace: Trace, allocator: RecordingAllocator):
        self.events = 0
        self.blocks: list[PlacedBlock] = []
        self.segments: list[PlacedSegment] = []
        self._in_use: dict[int, PlacedBlock] = {}  # by address
        self._mapped: dict[int, PlacedSegment] = {}  # by address
        self._end = len(trace.events)  # of what has no end yet
        allocated = allocator.allocated
        for event, _ in zip(trace.events, replayed(trace, allocator), strict=False):
            for action in allocator.actions:
                if action.name == "alloc":
                    assert isinstance(event, Alloc)
                    size = allocator.allocated - allocated
                    block = PlacedBlock(
                        event.site, action.nbytes, size, action.address, self.events, self._end, self._end
                    )
                    self._in_use[action.address] = block
                    self.blocks.append(block)
                else:
                    self._note(action, self.events)
            allocator.actions.clear()
            allocated = allocator.allocated
            self.events += 1
        for block in self.blocks:
            block.freed, block.reusable = min(block.freed, self.events), min(block.reusable, self.events)
        for segment in self.segments:
            segment.end = min(segment.end, self.events)

    def _note(self, action: Action, index: int) -> None:
        match action.name:
            case "free_requested":
                self._in_use[action.address].freed = index
            case "free_completed":
                self._in_use.pop(action.address).reusable = index
            case "segment_alloc" | "segment_map":
                page = 0 if action.base is None else action.page
                base = action.address if action.base is None else action.base
                self._add(PlacedSegment(action.address, action.nbytes, base, page, index, self._end))
            case "segment_free" | "segment_unmap":
                self._remove(action.address, action.address + action.nbytes, index)

    def _add(self, segment: PlacedSegment) -> None:
        self._mapped[segment.address] = segment
        self.segments.append(segment)

    def _remove(self, start: int, stop: int, index: int) -> None:
        """End the segments between two addresses. What lies beside them goes on as segments of their own."""
        for segment in list(self._mapped.values()):
            if segment.address >= stop or start >= segment.address + segment.size:
                continue
            del self._mapped[segment.address]
            segment.end = index
            behind = segment.address + segment.size
            for address, end in ((segment.address, min(start, behind)), (max(stop, segment.address), behind)):
                if end > address:
                    self._add(PlacedSegment(address, end - address, segment.base, segment.page, index, self._end))
