"""Blocks and segments of a replay as intervals: where each lay, and from which event to which.

Who holds what after any event, and which holes lie between, is then one pass over these intervals: an event is within
an interval from its ``begin`` to before its end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from memlab.predict.allocator import OutOfMemory, RecordingAllocator
from memlab.predict.allocator.recording import Action
from memlab.predict.trace.apply_events import apply
from memlab.predict.trace.events import Alloc
from memlab.predict.trace.trace_format import Trace


@dataclass
class Block:
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
class Segment:
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


@dataclass
class Placements:
    """``events``: how many events were replayed; what is there after the last one ends at this number."""

    events: int = 0
    blocks: list[Block] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)


def placements(trace: Trace, allocator: RecordingAllocator) -> Placements:
    """Replay a trace with a new ``allocator``. An out-of-memory ends it: the event without room is not counted."""
    return _Builder(trace, allocator).build()


class _Builder:
    def __init__(self, trace: Trace, allocator: RecordingAllocator):
        self.trace, self.allocator = trace, allocator
        self.found = Placements()
        self.in_use: dict[int, Block] = {}  # by address
        self.mapped: dict[int, Segment] = {}  # by address
        self.end = len(trace.events)  # of what has no end yet

    def build(self) -> Placements:
        for index, event in enumerate(self.trace.events):
            allocated = self.allocator.allocated
            try:
                apply(event, self.allocator)
            except OutOfMemory:
                self._end_at(index)
                break
            for action in self.allocator.actions:
                if action.name == "alloc":
                    assert isinstance(event, Alloc)
                    self._request(action, event.site, self.allocator.allocated - allocated, index)
                else:
                    self._note(action, index)
            self.allocator.actions.clear()
        self.found.events = self.end
        return self.found

    def _request(self, action: Action, site: int, size: int, index: int) -> None:
        block = Block(site, action.nbytes, size, action.address, index, self.end, self.end)
        self.in_use[action.address] = block
        self.found.blocks.append(block)

    def _note(self, action: Action, index: int) -> None:
        match action.name:
            case "free_requested":
                self.in_use[action.address].freed = index
            case "free_completed":
                self.in_use.pop(action.address).reusable = index
            case "segment_alloc" | "segment_map":
                page = 0 if action.base is None else action.page
                base = action.address if action.base is None else action.base
                self._add(Segment(action.address, action.nbytes, base, page, index, self.end))
            case "segment_free" | "segment_unmap":
                self._remove(action.address, action.address + action.nbytes, index)

    def _add(self, segment: Segment) -> None:
        self.mapped[segment.address] = segment
        self.found.segments.append(segment)

    def _remove(self, start: int, stop: int, index: int) -> None:
        """End the segments between two addresses. What lies beside them goes on as segments of their own."""
        for segment in list(self._overlapping(start, stop)):
            del self.mapped[segment.address]
            segment.end = index
            behind = segment.address + segment.size
            for address, end in ((segment.address, min(start, behind)), (max(stop, segment.address), behind)):
                if end > address:
                    self._add(Segment(address, end - address, segment.base, segment.page, index, self.end))

    def _overlapping(self, start: int, stop: int) -> Iterator[Segment]:
        return (each for each in self.mapped.values() if each.address < stop and start < each.address + each.size)

    def _end_at(self, index: int) -> None:
        """End what has no end yet at an earlier event than the last."""
        for block in self.found.blocks:
            block.freed, block.reusable = min(block.freed, index), min(block.reusable, index)
        for segment in self.found.segments:
            segment.end = min(segment.end, index)
        self.end = index
