"""Intervals of a predicted step: when the host and each stream work on which item of the trace."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from memlab.core.config import Config
from memlab.prediction.time.clocks import COMMUNICATION, Clocks, Costs
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import Collective, Copy, HostWaits, Item, KernelLaunch


class Interval(NamedTuple):
    """Time of one item on the host or on a stream, in seconds from the beginning of the step. ``item``: index in the
    work of the step; ``waits``: the host waits for the device."""

    item: int
    begin: float
    end: float
    waits: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class StepIntervals:
    """One step of many equal ones, from the end of the step before to its own end, ``seconds`` later.

    The host runs ahead of the device: its first intervals can belong to work whose launch was in the step before, and
    its last ones to the next step. ``host`` and each stream of ``streams`` (``COMMUNICATION``: the collectives) are in
    order and do not overlap. ``moments``: pairs of the host's second and the number of items that it is done with, from
    the last pair before the step on; the items of the next step are counted from 0 again.
    """

    seconds: float
    host: list[Interval]
    streams: dict[int, list[Interval]]
    moments: list[tuple[float, int]]


def step_intervals(config: Config, work: Sequence[Item], costs: Costs) -> StepIntervals:
    """Run the clocks of :func:`memlab.prediction.time.clocks.step_seconds` and note every interval.

    The hardware entry must have the speeds for a step time.
    """
    clock = Clocks(config, costs)
    notes = _Notes()
    ends = []
    for _ in range(3):  # work of the step before and of the next step can lie inside the step
        clock.run(work, notes.after_each(clock, work))
        ends.append(clock.end())
    begin, end = ends[0], ends[1]
    before = [moment for moment in notes.moments if moment[0] <= begin][-1:]
    inside = [moment for moment in notes.moments if begin < moment[0] <= end]
    return StepIntervals(
        seconds=end - begin,
        host=_cut(notes.host, begin, end),
        streams={
            stream: found for stream in sorted(notes.streams) if (found := _cut(notes.streams[stream], begin, end))
        },
        moments=[(second - begin, done) for second, done in (*before, *inside)],
    )


def event_seconds(config: Config, trace: Trace, costs: Costs) -> dict[int, float]:
    """Return event of the timed step (index in ``trace.events``) -> the host's second then, from the first one on.

    An event happens when the host is done with the item before it, as in memory/release_delay.py.
    """
    clock = Clocks(config, costs)
    clock.run(trace.work)
    hosts: list[float] = []
    clock.run(trace.work, lambda: hosts.append(clock.host))
    each = zip(hosts, events_after_each_item(trace), strict=True)
    return {event: host - hosts[0] for host, events in each for event in events}


def events_after_each_item(trace: Trace) -> list[range]:
    """Return the events (indices in ``trace.events``) after each item of the work, up to the next item, or to the end
    of the step. Those from the beginning of the step on belong to the first item.

    A command goes on after its last step: what it frees then is not of the step.
    """
    begin = trace.steps[-1]
    pieces = {event: piece.step for event, piece in zip(trace.phase_begins, trace.pieces, strict=False)}
    end = next((event for event, step in pieces.items() if event > begin and step != pieces[begin]), len(trace.events))
    edges = [begin, *(min(before, end) for before in trace.events_before[1:]), end]
    return [range(first, last) for first, last in pairwise(edges)]


def busy_seconds(intervals: Iterable[Interval]) -> float:
    """Return the time in which at least one of the intervals runs."""
    return sum(each.seconds for each in merged(intervals))


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Join intervals that overlap or touch. A joined interval has the first item of its parts."""
    found: list[Interval] = []
    for each in sorted(intervals, key=lambda interval: interval.begin):
        if found and each.begin <= found[-1].end:
            found[-1] = found[-1]._replace(end=max(found[-1].end, each.end))
        else:
            found.append(each)
    return found


@dataclass
class _Notes:
    host: list[Interval] = field(default_factory=list)
    streams: dict[int, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    moments: list[tuple[float, int]] = field(default_factory=list)

    def after_each(self, clock: Clocks, work: Sequence[Item]) -> Callable[[], None]:
        """Return what notes the interval of one item of ``work`` after another."""
        items = enumerate(work)
        before = clock.host

        def note() -> None:
            nonlocal before
            index, item = next(items)
            busy = before + item.operators * clock.costs.operator_s + item.modules * clock.module_s
            until = busy if isinstance(item, KernelLaunch | Copy | HostWaits) else clock.host
            self.host += [Interval(index, before, until), Interval(index, until, clock.host, waits=True)]
            if isinstance(item, KernelLaunch | Copy | Collective):
                stream = COMMUNICATION if isinstance(item, Collective) else item.stream
                self.streams[stream].append(Interval(index, clock.began, clock.streams[stream]))
            before = clock.host
            self.moments.append((before, index + 1))

        return note


def _cut(intervals: Iterable[Interval], begin: float, end: float) -> list[Interval]:
    """Return what lies between ``begin`` and ``end``, in seconds from ``begin``, without empty intervals."""
    cut = (each._replace(begin=max(each.begin, begin) - begin, end=min(each.end, end) - begin) for each in intervals)
    return [each for each in cut if each.end > each.begin]
