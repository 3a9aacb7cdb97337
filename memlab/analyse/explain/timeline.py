"""Memory of one rank over time: what is allocated and reserved after each event, by part of the run and by kind."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.phases import Part, parts_of
from memlab.predict.trace.apply_events import replayed
from memlab.predict.trace.events import Alloc, Free
from memlab.predict.trace.trace_format import Trace

ROUNDING = "rounding of blocks in use"
"""Row of :func:`by_kind` for what blocks hold beyond the requests, as in the accounting."""


@dataclass(frozen=True)
class Timeline:
    """Memory after each event of a trace, in bytes. An out-of-memory ends the lists before the trace ends.

    ``active``: allocated, or freed while a side stream may still use it. ``seconds``: when each event happened, from
    the first one on; ``None`` if no clock is known. ``parts``: in order, without gaps. ``peak``: the first event after
    which most is allocated.
    """

    allocated: Sequence[int]
    active: Sequence[int]
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


def timeline(rank: Explained) -> Timeline:
    """Replay the trace of a rank. The peak is the one of its explanation."""
    allocated, active, reserved = [], [], []
    history = rank.history
    for allocator in replayed(history.trace, history.recorder()):
        allocated.append(allocator.allocated)
        active.append(allocator.active)
        reserved.append(allocator.reserved)
    return Timeline(
        allocated, active, reserved, history.seconds, parts_of(history.trace, len(allocated)), rank.peak.event
    )


def by_kind(trace: Trace, events: Sequence[int], allocated: Sequence[int]) -> dict[str, list[int]]:
    """Return kind -> bytes after each of the ``events``, which are in order. The kinds, with :data:`ROUNDING`, add up
    to ``allocated`` then; the kind with the highest maximum comes first."""
    held = list(_held_by_kind(trace, events))
    kinds = {kind: [counts[kind] for counts in held] for kind in set().union(*held)}
    kinds[ROUNDING] = [allocated[event] - counts.total() for event, counts in zip(events, held, strict=True)]
    return {kind: kinds[kind] for kind in sorted(kinds, key=lambda kind: -max(kinds[kind], default=0))}


def _held_by_kind(trace: Trace, events: Sequence[int]) -> Iterator[Counter[str]]:
    held: Counter[str] = Counter()
    blocks: dict[int, tuple[str, int]] = {}
    wanted = set(events)
    for index, event in enumerate(trace.events):
        if isinstance(event, Alloc):
            blocks[event.key] = trace.sites[event.site].kind, event.nbytes
            held[trace.sites[event.site].kind] += event.nbytes
        elif isinstance(event, Free):
            kind, nbytes = blocks.pop(event.key)
            held[kind] -= nbytes
        if index in wanted:
            yield held.copy()
