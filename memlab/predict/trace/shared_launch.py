"""Trace of a launch of several points, joined from the traces of the single points.

From its second step on an engine repeats itself. So a further point begins with an emptied cache, followed by copies of
the second step of its own trace. Some blocks of a step (its loss, a norm) live until the next step frees them. A copied
step frees such blocks of the step before it, matched by their origin.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memlab.predict.trace.events import (
    Alloc,
    BeginPhase,
    BeginPoint,
    EmptyCache,
    Event,
    Free,
    HostAlloc,
    HostFree,
    RecordStream,
    Synchronize,
)
from memlab.predict.trace.trace_format import Site, Trace

STEPS_OF_A_POINT = 2
"""Steps of each point, as many as a trace has: the first at a new size, and the one that all further steps equal."""

_WITH_KEY = (Alloc, Free, RecordStream, HostAlloc, HostFree)


def joined_points(traces: Sequence[Trace]) -> Trace:
    """Return the trace of a launch that runs the points of one rank's ``traces`` in order. Each point begins with a
    BeginPoint."""
    if len(traces) == 1:
        return traces[0]
    launch = _Launch(traces[0])
    for trace in traces[1:]:
        launch.add(trace)
    return replace(
        traces[-1],
        events=launch.events,
        phases=launch.phases,
        sites=launch.sites,
        steps=launch.steps,
        appearances=traces[0].appearances,  # a later point finds what the first one has made
    )


@dataclass(frozen=True)
class _Cycle:
    """The events from the end of one step to the end of the next, and the blocks that outlive a step.

    ``begin``: number of events before the step itself, in which its batch is fetched. The blocks, each key -> origin:
    ``enters`` are made before and freed here, ``leaves`` are made here and not freed, ``stays`` are made before and not
    freed.
    """

    events: list[Event]
    begin: int
    requests: int  # number of requests for device memory before these events
    enters: dict[int, tuple]
    leaves: dict[int, tuple]
    stays: dict[int, tuple]


def cycle(trace: Trace) -> _Cycle:
    """Return the cycle of the second step of a trace."""
    first, second = _ends_of_steps(trace)
    made: dict[int, tuple] = {}
    before: dict[int, tuple] = {}
    requests = 0
    for index, event in enumerate(trace.events[: second + 1]):
        if isinstance(event, Alloc | HostAlloc):
            made[event.key] = origin(trace, event)
            requests += isinstance(event, Alloc) and index <= first
        elif isinstance(event, Free | HostFree):
            del made[event.key]
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
    """Return the indices of the events that end the optimizer phases of the first and of the second step."""
    ends, phase = {}, ""
    for index, event in enumerate(trace.events):
        if isinstance(event, BeginPhase):
            if phase.endswith("optimizer_step"):
                ends[phase] = index
            phase = trace.phases[event.phase]
    return [ends["first_optimizer_step"], ends["optimizer_step"]]


def origin(trace: Trace, event: Alloc | HostAlloc) -> tuple:
    """Return where a block was made, regardless of its size. The origin is the same in the traces of all points."""
    if isinstance(event, HostAlloc):
        return HostAlloc, event.pinned
    site = trace.sites[event.site]
    return (Alloc, event.stream, site.kind, site.op, site.where, site.module)


class _Launch:
    """The events of a launch so far. ``_left``: the blocks that the last step left, origin -> keys, the oldest
    first."""

    def __init__(self, first: Trace):
        end = _ends_of_steps(first)[1]
        self.events = list(first.events[: end + 1])
        self.phases = list(first.phases)
        self.sites = list(first.sites)
        self.steps = list(first.steps)
        found = cycle(first)
        self._left = _by_origin({key: key for key in found.leaves}, found.leaves)
        self._kept = _by_origin({key: key for key in found.stays}, found.stays)
        self._requests = sum(isinstance(event, Alloc) for event in self.events)
        self._next_key = 1 + max(event.key for event in self.events if isinstance(event, Alloc | HostAlloc))

    def add(self, trace: Trace) -> None:
        """Add a point, as copies of the second step of its trace."""
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
                    self.events += [EmptyCache(), BeginPoint()]
                self.steps.append(len(self.events))
            if isinstance(event, Alloc | HostAlloc):
                keys[event.key] = self._next_key
                self._next_key += 1
                self._requests += isinstance(event, Alloc)
            if isinstance(event, _WITH_KEY) and event.key not in keys:
                continue  # a small block without a counterpart in the step before
            self.events.append(self._renamed(trace, event, keys, shift, sites, is_first))
        self._left = _by_origin({key: keys[key] for key in found.leaves}, found.leaves)

    def _keys_before(self, found: _Cycle) -> dict[int, int]:
        """Map the keys of blocks made before the step, which it frees or uses, to their keys in this launch."""
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
        if isinstance(event, BeginPhase):
            return BeginPhase(self._phase(trace.phases[event.phase], is_first))
        if isinstance(event, Synchronize):
            return Synchronize(event.requests + shift)
        if isinstance(event, Alloc):
            return event._replace(key=keys[event.key], site=event.site + sites)
        return event._replace(key=keys[event.key]) if isinstance(event, _WITH_KEY) else event

    def _phase(self, name: str, is_first: bool) -> int:
        """Return the index of a phase. Phases of a point's first step have names of their own, as in a measurement."""
        name = f"first_{name}" if name and is_first else name
        if name not in self.phases:
            self.phases.append(name)
        return self.phases.index(name)


def _by_origin(keys: dict[int, int], origins: dict[int, tuple]) -> dict[tuple, list[int]]:
    found = defaultdict(list)
    for key, origin in origins.items():
        found[origin].append(keys[key])
    return found
