"""Several points in one launch, as events: the traces of its points, each made alone, put behind one another.

From its second step on an engine repeats itself, so a further point is made of second steps at its own size, behind
the emptied cache that it begins with. What a step leaves to the next one (its loss, a norm) is let go there: a step
that is played again frees what the step before it left, matched by where it was made.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memlab.predict.events import ALLOC, EMPTY, FREE, HOST_ALLOC, HOST_FREE, PHASE, START, SYNC, USE, Event, Site, Trace

STEPS_OF_A_POINT = 2
"""As many as are traced: the first at a new size, and the one that all further ones are like."""

_WITH_KEY = (ALLOC, FREE, USE, HOST_ALLOC, HOST_FREE)


def in_one_launch(traces: Sequence[Trace]) -> Trace:
    """The trace of a launch that runs the points of ``traces`` (one rank's) in their order; a START begins each."""
    if len(traces) == 1:
        return traces[0]
    launch = _Launch(traces[0])
    for trace in traces[1:]:
        launch.add(trace)
    last = traces[-1]
    return replace(last, events=launch.events, phases=launch.phases, sites=launch.sites, steps=launch.steps)


@dataclass(frozen=True)
class _Cycle:
    """The events from the end of one step to the end of the next, and how they hang together with what is around.

    ``begin`` counts the events before the step itself (its batch is fetched). ``enters`` and ``leaves`` are the keys
    that were there before and are freed, and those that stay behind.
    """

    events: list[Event]
    begin: int
    requests: int  # for device memory, before the first of the events
    enters: dict[int, tuple]
    leaves: dict[int, tuple]
    stays: dict[int, tuple]


def cycle(trace: Trace) -> _Cycle:
    """The second step of a trace."""
    first, second = _ends_of_steps(trace)
    made: dict[int, tuple] = {}
    before: dict[int, tuple] = {}
    requests = 0
    for index, event in enumerate(trace.events[: second + 1]):
        if event[0] in (ALLOC, HOST_ALLOC):
            made[event[1]] = origin(trace, event)
            requests += event[0] == ALLOC and index <= first
        elif event[0] in (FREE, HOST_FREE):
            del made[event[1]]
        if index == first:
            before = dict(made)
    return _Cycle(
        events=trace.events[first + 1 : second + 1],
        begin=trace.steps[1] - first - 1,
        requests=requests,
        enters={key: value for key, value in before.items() if key not in made},
        leaves={key: value for key, value in made.items() if key not in before},
        stays={key: value for key, value in made.items() if key in before},
    )


def _ends_of_steps(trace: Trace) -> list[int]:
    """The events with which the optimizer step of each step ends."""
    ends, phase = {}, ""
    for index, event in enumerate(trace.events):
        if event[0] == PHASE:
            if phase.endswith("optimizer_step"):
                ends[phase] = index
            phase = trace.phases[event[1]]
    return [ends["first_optimizer_step"], ends["optimizer_step"]]


def origin(trace: Trace, event: Event) -> tuple:
    """Where a block was made, whatever its size: the same in the traces of all points."""
    if event[0] == HOST_ALLOC:
        return (HOST_ALLOC, event[3])
    site = trace.sites[event[4]]
    return (ALLOC, event[3], site.kind, site.op, site.where, site.module)


class _Launch:
    """The events so far. ``alive`` says what the last step left: where it was made -> its keys, the oldest first."""

    def __init__(self, first: Trace):
        end = _ends_of_steps(first)[1]
        self.events = list(first.events[: end + 1])
        self.phases = list(first.phases)
        self.sites = list(first.sites)
        self.steps = list(first.steps)
        found = cycle(first)
        self._left = _by_origin({key: key for key in found.leaves}, found.leaves)
        self._kept = _by_origin({key: key for key in found.stays}, found.stays)
        self._requests = sum(event[0] == ALLOC for event in self.events)
        self._next_key = 1 + max(event[1] for event in self.events if event[0] in (ALLOC, HOST_ALLOC))

    def add(self, trace: Trace) -> None:
        """One more point, in steps that are all like the second of its trace."""
        found = cycle(trace)
        sites = self._number_sites(trace.sites)
        for step in range(STEPS_OF_A_POINT):
            self._play(trace, found, sites, is_first=step == 0)

    def _number_sites(self, sites: Sequence[Site]) -> int:
        offset = len(self.sites)
        self.sites.extend(sites)
        return offset

    def _play(self, trace: Trace, found: _Cycle, sites: int, is_first: bool) -> None:
        keys = self._keys_before(found)
        shift = self._requests - found.requests
        for index, event in enumerate(found.events):
            if index == found.begin:
                if is_first:
                    self.events += [(EMPTY,), (START,)]
                self.steps.append(len(self.events))
            kind = event[0]
            if kind in (ALLOC, HOST_ALLOC):
                keys[event[1]] = self._next_key
                self._next_key += 1
                self._requests += kind == ALLOC
            if kind in _WITH_KEY and event[1] not in keys:
                continue  # something small that an earlier step had no counterpart of
            self.events.append(self._renamed(trace, event, keys, shift, sites, is_first))
        self._left = _by_origin({key: keys[key] for key in found.leaves}, found.leaves)

    def _keys_before(self, found: _Cycle) -> dict[int, int]:
        """For what the step frees or uses of what was there before: the keys that it has in this launch."""
        keys = {}
        for there, here in ((found.enters, self._left), (found.stays, self._kept)):
            waiting = {origin: deque(known) for origin, known in here.items()}
            for key, origin in there.items():
                if waiting.get(origin):
                    keys[key] = waiting[origin].popleft()
        return keys

    def _renamed(
        self, trace: Trace, event: Event, keys: dict[int, int], shift: int, sites: int, is_first: bool
    ) -> Event:
        kind = event[0]
        if kind == PHASE:
            return (PHASE, self._phase(trace.phases[event[1]], is_first))
        if kind == SYNC:
            return (SYNC, event[1] + shift)
        if kind == ALLOC:
            return (ALLOC, keys[event[1]], *event[2:4], event[4] + sites)
        return (kind, keys[event[1]], *event[2:]) if kind in _WITH_KEY else event

    def _phase(self, name: str, is_first: bool) -> int:
        """The first step of every point is kept apart, as it is when it is measured."""
        name = f"first_{name}" if name and is_first else name
        if name not in self.phases:
            self.phases.append(name)
        return self.phases.index(name)


def _by_origin(keys: dict[int, int], origins: dict[int, tuple]) -> dict[tuple, list[int]]:
    found = defaultdict(list)
    for key, origin in origins.items():
        found[origin].append(keys[key])
    return found
