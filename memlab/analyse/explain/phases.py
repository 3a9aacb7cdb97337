"""Phases of a rank: what is there when a phase begins, at its own peak and at its end."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from memlab.core.grouping import grouped
from memlab.prediction.memory.ledger import Moment, by_kind
from memlab.simulator.trace.trace_format import Trace


class Part(NamedTuple):
    """Part of the run: the events from ``begin`` to before ``end``. ``phase``: empty between phases; ``step``: the
    optimizer step, from 1; ``None`` outside the steps."""

    phase: str
    step: int | None
    begin: int
    end: int


class Chosen(NamedTuple):
    """Run of a phase that ran ``times`` times. ``events``: those after which the run is at its start, at its peak and
    at its end; most is allocated at its peak."""

    part: Part
    times: int
    events: tuple[int, int, int]


@dataclass(frozen=True)
class PhaseRun:
    """One run of a phase, of the ``times`` that it ran: the run with the highest peak of allocated memory."""

    part: Part
    times: int
    start: Moment
    peak: Moment
    end: Moment


class KindChange(NamedTuple):
    """Memory of one kind over a run of a phase, in bytes: at its start, its peak and its end."""

    kind: str
    start: int
    peak: int
    end: int

    @property
    def added(self) -> int:
        """More at the peak than at the start; negative where the phase had freed more than it had added by then."""
        return self.peak - self.start

    @property
    def stays(self) -> int:
        """What is still there at the end, of the bytes that the phase had added by its peak."""
        return max(0, min(self.added, self.end - self.start))


def changes(run: PhaseRun) -> list[KindChange]:
    """Return the change of each kind over a run of a phase, what it added most of first."""
    start, peak, end = (by_kind(moment.holdings) for moment in (run.start, run.peak, run.end))
    kinds = dict.fromkeys([*peak, *start, *end])
    found = [KindChange(kind, start.get(kind, 0), peak.get(kind, 0), end.get(kind, 0)) for kind in kinds]
    return sorted(found, key=lambda change: -change.added)


def parts_of(trace: Trace, length: int) -> tuple[Part, ...]:
    """Return the parts of the first ``length`` events. Neighbours of one phase and step are one part."""
    begins = [(begin, phase) for begin, phase in trace.phase_begins.items() if begin < length]
    found = [Part("", None, 0, begins[0][0] if begins else length)]
    for number, ((begin, phase), (end, _)) in enumerate(pairwise([*begins, (length, "")])):
        step = trace.pieces[number].shown_step if trace.pieces else bisect_right(trace.steps, begin) or None
        part = Part(phase, step, begin, end)
        if part[:2] == found[-1][:2]:
            part = part._replace(begin=found.pop().begin)
        found.append(part)
    return tuple(part for part in found if part.end > part.begin)


def highest_runs(parts: Iterable[Part], allocated: Sequence[int]) -> list[Chosen]:
    """Choose of each phase the run with the highest peak, in the order of the run. ``allocated``: after each event."""
    found = []
    for runs in grouped((part for part in parts if part.phase), attrgetter("phase")).values():
        part = max(runs, key=lambda run: max(allocated[run.begin : run.end]))
        peak = max(range(part.begin, part.end), key=allocated.__getitem__)
        found.append(Chosen(part, len(runs), (part.begin, peak, part.end - 1)))
    return sorted(found, key=lambda chosen: chosen.part.begin)
