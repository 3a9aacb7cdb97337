"""Trace of a launch of several points, joined from the traces of the single points.

From its second step on an engine repeats itself. So a further point begins with an emptied cache, followed by copies of
the second step of its own trace. Some blocks of a step (its loss, a norm) live until the next step frees them. A copied
step frees such blocks of the step before it, matched by their origin.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise

from memlab.simulator.trace.events import (
    FREE,
    MAKE,
    OF_A_BLOCK,
    Alloc,
    BeginPhase,
    BeginPoint,
    EmptyCache,
    Event,
    HostAlloc,
    Synchronize,
)
from memlab.simulator.trace.trace_format import Trace


def joined_points(traces: Sequence[Trace]) -> Trace:
    """Return the trace of a launch that runs the points of one rank's ``traces`` in order. Each point begins with a
    BeginPoint."""
    if len(traces) == 1:
        return traces[0]
    launch = _Launch(traces[0])
    for trace in traces[1:]:
        launch.add(trace)
    return launch.trace


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
    before, made = (_alive(trace, trace.events[: end + 1]) for end in (first, second))
    return _Cycle(
        events=trace.events[first + 1 : second + 1],
        begin=trace.steps[1] - first - 1,
        requests=sum(isinstance(event, Alloc) for event in trace.events[: first + 1]),
        enters={key: value for key, value in before.items() if key not in made},
        leaves={key: value for key, value in made.items() if key not in before},
        stays={key: value for key, value in made.items() if key in before},
    )


def _alive(trace: Trace, events: Sequence[Event]) -> dict[int, tuple]:
    """Return key -> origin of the blocks that are alive after these first events of a trace."""
    freed = {event.key for event in events if isinstance(event, FREE)}
    return {event.key: origin(trace, event) for event in events if isinstance(event, MAKE) and event.key not in freed}


def _ends_of_steps(trace: Trace) -> list[int]:
    """Return the indices of the events that end the optimizer phases of the first and of the second step."""
    ends = {phase: end for (_, phase), (end, _) in pairwise(trace.phase_begins.items())}
    return [ends["first_optimizer_step"], ends["optimizer_step"]]


def origin(trace: Trace, event: Alloc | HostAlloc) -> tuple:
    """Return where a block was made, regardless of its size. The origin is the same in the traces of all points."""
    if isinstance(event, HostAlloc):
        return HostAlloc, event.pinned
    site = trace.sites[event.site]
    return (Alloc, event.stream, site.kind, site.op, site.where, site.module)


class _Launch:
    """The ``trace`` of a launch so far. ``_left``: the blocks that the last step left, each key -> origin, the oldest
    first; ``_kept``: those that are never freed."""

    def __init__(self, first: Trace):
        events = first.events[: _ends_of_steps(first)[1] + 1]
        self.trace = replace(
            first, events=events, phases=list(first.phases), sites=list(first.sites), steps=list(first.steps)
        )
        found = cycle(first)
        self._left, self._kept = found.leaves, found.stays
        self._requests = sum(isinstance(event, Alloc) for event in events)
        self._new_keys = count(1 + max(event.key for event in events if isinstance(event, MAKE)))

    def add(self, trace: Trace) -> None:
        """Add a point, as two copies of the second step of its trace: the first step at a new size, and the one that
        all further steps equal."""
        own, found = self.trace, cycle(trace)
        self.trace = replace(
            trace,
            events=own.events,
            phases=own.phases,
            sites=[*own.sites, *trace.sites],
            steps=own.steps,
            appearances=own.appearances,  # a later point finds what the first one has made
        )
        for is_first in (True, False):
            self._play(trace.phases, found, len(own.sites), is_first)

    def _play(self, phases: Sequence[str], found: _Cycle, sites: int, is_first: bool) -> None:
        """Append a copy of a step. ``phases``: of its trace. ``sites``: number of the sites before those of its
        trace."""
        events = self.trace.events
        keys = matched(found.enters, self._left) | matched(found.stays, self._kept)
        shift = self._requests - found.requests
        for index, event in enumerate(found.events):
            if index == found.begin:
                if is_first:
                    events += [EmptyCache(), BeginPoint()]
                self.trace.steps.append(len(events))
            copy = copy_of(event, keys, self._new_keys, shift)
            if isinstance(copy, Alloc):
                self._requests += 1
                copy = copy._replace(site=copy.site + sites)
            elif isinstance(copy, BeginPhase):
                name = phases[copy.phase]  # of a point's first step: a name of its own, as in a measurement
                copy = BeginPhase(self.trace.phase_number(f"first_{name}" if name and is_first else name))
            events += [] if copy is None else [copy]
        self._left = {keys[key]: origin for key, origin in found.leaves.items()}


def copy_of(event: Event, keys: dict[int, int], new_keys: Iterator[int], shift: int) -> Event | None:
    """Return the copy of an event of a step; ``None``: of a small block without a counterpart in the step before.

    ``keys``: of blocks in the step -> in the copy, with one of ``new_keys`` for each block that the step makes.
    ``shift``: further requests before the copy.
    """
    if isinstance(event, MAKE):
        keys[event.key] = next(new_keys)
    if isinstance(event, OF_A_BLOCK):
        return event._replace(key=keys[event.key]) if event.key in keys else None
    return Synchronize(max(event.requests + shift, 0)) if isinstance(event, Synchronize) else event


def matched(blocks: Mapping[int, tuple], others: Mapping[int, tuple]) -> dict[int, int]:
    """Return each key of ``blocks`` -> the key of a block of the same origin among ``others``, the oldest first."""
    waiting: dict[tuple, deque[int]] = defaultdict(deque)
    for key, origin in others.items():
        waiting[origin].append(key)
    return {key: waiting[origin].popleft() for key, origin in blocks.items() if waiting[origin]}
