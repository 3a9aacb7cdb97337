"""A step of many micro-steps (gradient accumulation), from a trace of steps with a few.

The first micro-step of a step finds no gradients; the last one reduces what was accumulated, and the optimizer follows.
Of those between, the first few of a run differ at ZeRO-3, which has to see the order of the modules before it can
prefetch; from the fourth on all are alike. So five are traced, and the fourth is repeated. A micro-step lasts from the
beginning of its forward pass to that of the next one, whose batch is copied to the device at its end.
"""

from bisect import bisect_left, bisect_right
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, count, pairwise

from memlab.config import from_dict
from memlab.plan import Plan, make_plan
from memlab.predict.events import ALLOC, FREE, HOST_ALLOC, HOST_FREE, PHASE, SYNC, USE, Event, Trace
from memlab.predict.work import COLLECTIVE, NUMBER, RECORD, Item

TRACED = 5
"""Micro-steps of a traced step: three that may differ, the one that is repeated, the last."""

_MADE, _FREED = (ALLOC, HOST_ALLOC), (FREE, HOST_FREE)
_WITH_BLOCK = (*_MADE, *_FREED, USE)


def with_few(plan: Plan) -> Plan:
    """The plan itself; where it has more than ``TRACED`` micro-steps, the same one with so many."""
    if plan.config["batch"]["accumulation"] <= TRACED:
        return plan
    config = from_dict(plan.config)
    return make_plan(replace(config, batch=replace(config.batch, accumulation=TRACED)), plan.choices)


def repeated(trace: Trace, micro_steps: int) -> Trace | None:
    """Make the trace of ``micro_steps`` a step from one of ``TRACED``: what a shadow run of all of them records.

    ``None`` where only such a run can tell: the micro-steps do not become alike, or the batches of a step, which are
    all fetched before its first micro-step, are large enough to count as host memory.
    """
    steps = [_Step(trace, begins) for begins in _forwards(trace)]
    work = _Work(trace, steps[-1])
    if not (_become_alike(steps) and work.becomes_alike()) or _batches_count(trace):
        return None
    times = micro_steps - TRACED
    longer = _Longer(trace, steps, times)
    return replace(
        trace,
        events=longer.events,
        steps=[longer.place(place) for place in trace.steps],
        work=work.repeated(times),
        places=work.places(times, earlier=longer.place(trace.steps[-1]) - trace.steps[-1]),
    )


def _forwards(trace: Trace) -> list[list[int]]:
    """The places of the events with which forward passes begin, for each step."""
    found: list[list[int]] = [[] for _ in trace.steps]
    for place, event in enumerate(trace.events):
        if event[0] == PHASE and trace.phases[event[1]].endswith("forward"):
            found[bisect_right(trace.steps, place) - 1].append(place)
    return found


def _batches_count(trace: Trace) -> bool:
    """Whether host memory is taken outside the phases of the steps, where batches are fetched."""
    phase = ""
    for event in trace.events[trace.steps[0] :]:
        if event[0] == PHASE:
            phase = trace.phases[event[1]]
        elif event[0] == HOST_ALLOC and not phase:
            return True
    return False


class _Step:
    """The events of the micro-steps of one step.

    ``begins``: the place at which each begins. ``ends``: how many requests for device memory were made before the first
    one, and until the end of each but the last. ``requests``: those of the fourth. ``twins``: for each block that the
    third makes, the one that the fourth makes in its place.
    """

    def __init__(self, trace: Trace, begins: Sequence[int]):
        self.begins = begins
        self._phases = trace.phases
        _, self.second, self.third, self.fourth = (trace.events[begin:end] for begin, end in pairwise(begins))
        requests = [0, *accumulate(event[0] == ALLOC for event in trace.events[: begins[-1]])]
        self.ends = [requests[begin] for begin in begins]
        self.requests = self.ends[-1] - self.ends[-2]
        self.twins = dict(zip(_made(self.third), _made(self.fourth), strict=False))

    @property
    def end(self) -> int:
        """The place behind the fourth micro-step."""
        return self.begins[-1]

    def leaves_nothing(self) -> bool:
        """Whether all that the third micro-step makes is freed when the fourth is over."""
        return self.twins.keys() <= {event[1] for event in (*self.third, *self.fourth) if event[0] in _FREED}

    def form(self, before: Sequence[Event], events: Sequence[Event]) -> list[tuple]:
        """What a micro-step does: each block by its place among those that ``events`` make, or that the micro-step
        ``before`` made; a block that was there without one. Waits are left out."""
        places = {block: (its is events, place) for its in (before, events) for place, block in enumerate(_made(its))}
        found = []
        for event in events:
            if event[0] == PHASE:
                found.append((PHASE, self._phases[event[1]].removeprefix("first_")))
            elif event[0] in _WITH_BLOCK:
                found.append((event[0], places.get(event[1]), *event[2:]))
            elif event[0] != SYNC:
                found.append(event)
        return found

    def waits(self) -> list[tuple[int, int]]:
        """For what the host waits in the fourth micro-step: which micro-step made the request, and how many requests
        before its end."""
        return [self._moment(event[1]) for event in self.fourth if event[0] == SYNC]

    def later(self, requests: int, micro_steps: int) -> int:
        """The number of requests at the same moment of a micro-step that comes so many later."""
        number, before_its_end = self._moment(requests)
        beyond = max(number + micro_steps - len(self.ends) + 1, 0)
        return self.ends[number + micro_steps - beyond] + beyond * self.requests - before_its_end

    def _moment(self, requests: int) -> tuple[int, int]:
        number = min(bisect_left(self.ends, requests), len(self.ends) - 1)
        return number, self.ends[number] - requests


def _made(events: Sequence[Event]) -> list[int]:
    return [event[1] for event in events if event[0] in _MADE]


def _become_alike(steps: Sequence[_Step]) -> bool:
    """Whether the fourth micro-step does the same in all steps, and in the last step what the third does."""
    last = steps[-1]
    alike = last.form(last.third, last.fourth)
    return (
        alike == last.form(last.second, last.third)
        and all(step.form(step.third, step.fourth) == alike and step.waits() == last.waits() for step in steps)
        and all(step.leaves_nothing() and all(number for number, _ in step.waits()) for step in steps)
    )


class _Longer:
    """The events of a trace, with the fourth micro-step of each step ``times`` times more."""

    def __init__(self, trace: Trace, steps: Sequence[_Step], times: int):
        self.events: list[Event] = []
        self._times = times
        self._done: list[_Step] = []
        self._blocks: dict[int, int] = {}  # block of the short trace: the last one in its place
        self._new = count(1)  # numbers of blocks, in the order in which a shadow run numbers them
        begin = 0
        for step in steps:
            self._copy(trace.events[begin : step.end])
            for time in range(1, times + 1):
                self._repeat(step, time)
            self._done.append(step)
            begin = step.end
        self._copy(trace.events[begin:])

    def place(self, place: int) -> int:
        """Where an event of the short trace is."""
        return place + self._times * sum(len(step.fourth) for step in self._done if step.end <= place)

    def _copy(self, events: Sequence[Event]) -> None:
        for event in events:
            if event[0] in _MADE:
                self._blocks[event[1]] = next(self._new)
            self._add(event, self._blocks)

    def _repeat(self, step: _Step, time: int) -> None:
        own: dict[int, int] = {}
        of_the_one_before = {block: self._blocks[twin] for block, twin in step.twins.items()}
        blocks = ChainMap(own, of_the_one_before, self._blocks)
        for event in step.fourth:
            if event[0] in _MADE:
                own[event[1]] = next(self._new)
            self._add((SYNC, step.later(event[1], time)) if event[0] == SYNC else event, blocks)
        self._blocks |= own

    def _add(self, event: Event, blocks: Mapping[int, int]) -> None:
        if event[0] == SYNC:
            event = (SYNC, self._requests(event[1]))
        elif event[0] in _WITH_BLOCK:
            event = (event[0], blocks[event[1]], *event[2:])
        self.events.append(event)

    def _requests(self, requests: int) -> int:
        """A number of requests of the short trace."""
        for step in reversed(self._done):
            if requests > step.ends[0]:
                requests = step.later(requests, self._times)
        return requests


class _Work:
    """The work of the last step, cut where its micro-steps begin."""

    def __init__(self, trace: Trace, step: _Step):
        self._length = len(step.fourth)
        self._places = trace.places
        self._cuts = [0, *(bisect_right(trace.places, begin) for begin in step.begins), len(trace.places)]
        self._before, *self._micro_steps, self._rest = self._cut(trace.work)

    def becomes_alike(self) -> bool:
        """Whether each micro-step records as many events and asks for as many collectives, and the third does the same
        as the fourth. It may wait less: events of the step before are not counted."""
        *_, third, fourth = map(_without_waits, self._micro_steps)
        counts = [_counts(items) for items in self._micro_steps]
        return third == fourth and all(each == counts[-1] for each in counts)

    def repeated(self, times: int) -> list[Item]:
        fourth = self._micro_steps[-1]
        begin, within = _counts(self._before), _counts(fourth)
        found = [*self._before, *chain.from_iterable(self._micro_steps)]
        for time in range(1, times + 1):
            found += [_later(item, time, begin, within) for item in fourth]
        return [*found, *(_later(item, times, begin, within) for item in self._rest)]

    def places(self, times: int, earlier: int) -> list[int]:
        """How many events are before each item; ``earlier`` are those that are new before the step."""
        before, *micro_steps, rest = self._cut([place + earlier for place in self._places])
        found = [*before, *chain.from_iterable(micro_steps)]
        for time in range(1, times + 1):
            found += [place + time * self._length for place in micro_steps[-1]]
        return [*found, *(place + times * self._length for place in rest)]

    def _cut(self, items: list) -> list[list]:
        """Before the first micro-step, the first to the fourth, and what follows."""
        return [items[begin:end] for begin, end in pairwise(self._cuts)]


def _without_waits(items: Iterable[Item]) -> list[Item]:
    """The items that the machine is asked for, whatever number of operators is before each."""
    return [(item[0], *item[3:]) for item in items if item[0] not in NUMBER]


def _counts(items: Iterable[Item]) -> dict[int, int]:
    """How many events and collectives there are, which waiting items count."""
    kinds = Counter(item[0] for item in items)
    return {kind: kinds[kind] for kind in (RECORD, COLLECTIVE)}


def _later(item: Item, micro_steps: int, begin: Mapping[int, int], within: Mapping[int, int]) -> Item:
    """The item so many micro-steps later. ``begin``: the events and collectives before the first of them, which do not
    move; ``within``: those of one of them."""
    if item[0] not in NUMBER:
        return item
    place, kind = NUMBER[item[0]]
    if item[place] < begin[kind]:
        return item
    return (*item[:place], item[place] + micro_steps * within[kind], *item[place + 1 :])
