"""Traces of steps with many micro-steps (gradient accumulation), made from a trace with five micro-steps a step.

The first micro-step of a step finds no gradients. The last one reduces the accumulated gradients, and the optimizer
follows. Between them, the first few micro-steps of a run differ at ZeRO-3, which has to see the order of the modules
before it can prefetch; from the fourth on all are equal. So five are traced, and the fourth is repeated. A micro-step
lasts from the beginning of its forward pass to the beginning of the next one. The batch of the next micro-step is
copied to the device at its end.
"""

from bisect import bisect_left, bisect_right
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, count, pairwise

from memlab.core.plan import Plan, make_plan
from memlab.simulator.trace.events import FREE, MAKE, OF_A_BLOCK, Alloc, BeginPhase, Event, HostAlloc, Synchronize, made
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import NUMBERED, Collective, Item, RecordEvent, renumbered

TRACED = 5
"""Micro-steps of a traced step: three that may differ, the one that is repeated, the last."""


def with_few(plan: Plan) -> Plan:
    """Return the plan with at most ``TRACED`` micro-steps: the plan itself if it has no more."""
    config = plan.config
    if config.batch.accumulation <= TRACED:
        return plan
    return make_plan(replace(config, batch=replace(config.batch, accumulation=TRACED)), plan.choices)


def repeated(trace: Trace, micro_steps: int) -> Trace | None:
    """Make the trace with ``micro_steps`` a step from a trace with ``TRACED``, equal to the trace of a shadow run.

    ``None`` where a shadow run is needed: the micro-steps do not become equal, or the batches of a step, which are all
    fetched before its first micro-step, are large enough to count as host memory.
    """
    steps = [_StepEvents(trace, begins) for begins in _forwards(trace)]
    work = _CutWork(trace, steps[-1])
    if not (_become_alike(steps) and work.becomes_alike()) or _batches_count(trace):
        return None
    times = micro_steps - TRACED
    longer = _Longer(trace, steps, times)
    return replace(
        trace,
        events=longer.events,
        steps=[longer.index(index) for index in trace.steps],
        appearances=[each._replace(event=longer.index(each.event)) for each in trace.appearances],
        work=work.repeated(times),
        events_before=work.events_before(times, earlier=longer.index(trace.steps[-1]) - trace.steps[-1]),
    )


def _forwards(trace: Trace) -> list[list[int]]:
    """Return for each step the indices of the events that begin its forward passes."""
    found: list[list[int]] = [[] for _ in trace.steps]
    for index, event in enumerate(trace.events):
        if isinstance(event, BeginPhase) and trace.phases[event.phase].endswith("forward"):
            found[bisect_right(trace.steps, index) - 1].append(index)
    return found


def _batches_count(trace: Trace) -> bool:
    """Return whether the steps request host memory outside their phases, where batches are fetched."""
    phase = ""
    for event in trace.events[trace.steps[0] :]:
        if isinstance(event, BeginPhase):
            phase = trace.phases[event.phase]
        elif isinstance(event, HostAlloc) and not phase:
            return True
    return False


class _StepEvents:
    """The events of the micro-steps of one step.

    ``begins``: index of the event that begins each micro-step. ``end``: index of the event after the fourth micro-step.
    ``ends``: number of requests for device memory before the first micro-step, and until the end of each but the last.
    ``requests``: number of requests in the fourth. ``twins``: block made by the third micro-step -> the block that the
    fourth makes in its place.
    """

    def __init__(self, trace: Trace, begins: Sequence[int]):
        self.begins, self.end = begins, begins[-1]
        self._phases = trace.phases
        _, self.second, self.third, self.fourth = (trace.events[begin:end] for begin, end in pairwise(begins))
        requests = [0, *accumulate(isinstance(event, Alloc) for event in trace.events[: begins[-1]])]
        self.ends = [requests[begin] for begin in begins]
        self.requests = self.ends[-1] - self.ends[-2]
        self.twins = dict(zip(made(self.third), made(self.fourth), strict=False))

    def leaves_nothing(self) -> bool:
        """Return whether every block that the third micro-step makes is freed by the end of the fourth."""
        return self.twins.keys() <= {event.key for event in (*self.third, *self.fourth) if isinstance(event, FREE)}

    def form(self, before: Sequence[Event], events: Sequence[Event]) -> list[tuple]:
        """Return the events of a micro-step in a form that can be compared with another micro-step, without waits.

        A block is replaced by its number among the blocks that ``events`` make, or that the micro-step ``before``
        makes. An older block has no number.
        """
        numbers = {block: (its is events, number) for its in (before, events) for number, block in enumerate(made(its))}
        found: list[tuple] = []
        for event in events:
            if isinstance(event, BeginPhase):
                found.append((BeginPhase, self._phases[event.phase].removeprefix("first_")))
            elif isinstance(event, OF_A_BLOCK):
                found.append((type(event), numbers.get(event.key), *event[1:]))
            elif not isinstance(event, Synchronize):
                found.append((type(event), event))
        return found

    def waits(self) -> list[tuple[int, int]]:
        """Return the requests that the host waits for in the fourth micro-step: (number of the micro-step that made the
        request, number of requests from there to the end of that micro-step)."""
        return [self._moment(event.requests) for event in self.fourth if isinstance(event, Synchronize)]

    def later(self, requests: int, micro_steps: int) -> int:
        """Return the number of requests at the same moment of the micro-step that comes ``micro_steps`` later."""
        number, before_its_end = self._moment(requests)
        beyond = max(number + micro_steps - len(self.ends) + 1, 0)
        return self.ends[number + micro_steps - beyond] + beyond * self.requests - before_its_end

    def _moment(self, requests: int) -> tuple[int, int]:
        number = min(bisect_left(self.ends, requests), len(self.ends) - 1)
        return number, self.ends[number] - requests


def _become_alike(steps: Sequence[_StepEvents]) -> bool:
    """Return whether the fourth micro-step is the same in all steps, and in the last step the same as the third."""
    last = steps[-1]
    alike = last.form(last.third, last.fourth)
    return (
        alike == last.form(last.second, last.third)
        and all(step.form(step.third, step.fourth) == alike and step.waits() == last.waits() for step in steps)
        and all(step.leaves_nothing() and all(number for number, _ in step.waits()) for step in steps)
    )


class _Longer:
    """The events of a trace in which the fourth micro-step of each step is repeated ``times`` more times."""

    def __init__(self, trace: Trace, steps: Sequence[_StepEvents], times: int):
        self.events: list[Event] = []
        self._times = times
        self._done: list[_StepEvents] = []
        self._blocks: dict[int, int] = {}  # block of the short trace -> the latest block in its place
        self._new = count(1)  # new block numbers, in the order in which a shadow run gives them
        begin = 0
        for step in steps:
            self._copy(trace.events[begin : step.end])
            for time in range(1, times + 1):
                self._repeat(step, time)
            self._done.append(step)
            begin = step.end
        self._copy(trace.events[begin:])

    def index(self, index: int) -> int:
        """Return the new index of an event of the short trace."""
        return index + self._times * sum(len(step.fourth) for step in self._done if step.end <= index)

    def _copy(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, MAKE):
                self._blocks[event.key] = next(self._new)
            self._add(event, self._blocks)

    def _repeat(self, step: _StepEvents, time: int) -> None:
        own: dict[int, int] = {}
        blocks = ChainMap(own, {block: self._blocks[twin] for block, twin in step.twins.items()}, self._blocks)
        for event in step.fourth:
            if isinstance(event, MAKE):
                own[event.key] = next(self._new)
            if isinstance(event, Synchronize):
                event = Synchronize(step.later(event.requests, time))
            self._add(event, blocks)
        self._blocks |= own

    def _add(self, event: Event, blocks: Mapping[int, int]) -> None:
        if isinstance(event, Synchronize):
            event = Synchronize(self._requests(event.requests))
        elif isinstance(event, OF_A_BLOCK):
            event = event._replace(key=blocks[event.key])
        self.events.append(event)

    def _requests(self, requests: int) -> int:
        """Convert a number of requests of the short trace to the long one."""
        for step in reversed(self._done):
            if requests > step.ends[0]:
                requests = step.later(requests, self._times)
        return requests


class _CutWork:
    """The work of the last step, cut where its micro-steps begin."""

    def __init__(self, trace: Trace, step: _StepEvents):
        self._length = len(step.fourth)
        self._events_before = trace.events_before
        self._cuts = [0, *(bisect_right(trace.events_before, begin) for begin in step.begins), len(trace.work)]
        self._before, *self._micro_steps, self._rest = self._cut(trace.work)

    def becomes_alike(self) -> bool:
        """Return whether all micro-steps record as many events and launch as many collectives, and the third does the
        same work as the fourth. Waits are not compared, because a wait for an event of the step before is not
        counted."""
        *_, third, fourth = map(_without_waits, self._micro_steps)
        counts = [_counts(items) for items in self._micro_steps]
        return third == fourth and all(each == counts[-1] for each in counts)

    def repeated(self, times: int) -> list[Item]:
        """Return the work with the fourth micro-step repeated ``times`` more times. The numbers of events and
        collectives from before the first micro-step stay, all others move on."""
        fourth = self._micro_steps[-1]
        begin, within = _counts(self._before), _counts(fourth)

        def later(items: Iterable[Item], time: int) -> list[Item]:
            return [
                renumbered(item, lambda kind, number: number + time * within[kind] * (number >= begin[kind]))
                for item in items
            ]

        copies = chain.from_iterable(later(fourth, time) for time in range(1, times + 1))
        return [*self._before, *chain.from_iterable(self._micro_steps), *copies, *later(self._rest, times)]

    def events_before(self, times: int, earlier: int) -> list[int]:
        """Return the number of events before each item. ``earlier``: number of events added before the last step."""
        before, *micro_steps, rest = self._cut([events + earlier for events in self._events_before])
        copies = (events + time * self._length for time in range(1, times + 1) for events in micro_steps[-1])
        behind = (events + times * self._length for events in rest)
        return [*before, *chain.from_iterable(micro_steps), *copies, *behind]

    def _cut(self, items: list) -> list[list]:
        """Cut ``items`` into the part before the first micro-step, the micro-steps one to four, and the rest."""
        return [items[begin:end] for begin, end in pairwise(self._cuts)]


def _without_waits(items: Iterable[Item]) -> list[tuple]:
    """Return the items without waits and records, and without their counts of operators and modules."""
    return [(type(item), item._replace(operators=0, modules=0)) for item in items if type(item) not in NUMBERED]


def _counts(items: Iterable[Item]) -> dict[type, int]:
    """Count the recorded events and the collectives, which other items refer to by number."""
    kinds = Counter(map(type, items))
    return {kind: kinds[kind] for kind in (RecordEvent, Collective)}
