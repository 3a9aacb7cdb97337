"""When a block that a side stream used is free again: by the clocks of the step's time.

torch records an event on the side stream when such a block is freed, and gives the block back once a later request sees
that the GPU has got there. How far that is depends on how far the host is ahead: hardly at all where Python takes the
time, by many layers where the GPU does. Both are what step_time.py goes through for the time of a step.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from memlab.config import Config
from memlab.predict.calibration import SHIPPED, Calibration, calibration_for, load
from memlab.predict.events import ALLOC, FREE, SYNC, USE, Event, Trace
from memlab.predict.launches import origin
from memlab.predict.step_time import clocks


def with_lags(trace: Trace, config: Config, host: float = 1.0) -> Trace:
    """The trace with a lag at each FREE of a block that a side stream used: after how many further requests the block
    is free indeed. When the host waits is in the lags, and so the SYNCs are gone.

    The hardware entry must have the figures to tell the time with. Where there is no calibration for its GPU, the one
    that ships stands in for it: what the host takes is of Python and the engine, not of the GPU. ``host``: as a share
    of that, what another host takes.

    Only the last step of a trace has its work counted. What the first one frees waits as long as what the last one
    frees of the same origin.
    """
    uses = _uses(trace)
    lags = _lags_of_the_step(trace, config, host, uses)
    known: dict[tuple, deque[int]] = defaultdict(deque)
    origins = _origins(trace, uses)
    for index, lag in lags.items():
        known[origins[index]].append(lag)
    events: list[Event] = list(trace.events)
    for index, where in origins.items():
        lag = lags.get(index)
        if lag is None and known[where]:
            lag = known[where][0]
            known[where].rotate(-1)
        events[index] = (FREE, events[index][1], lag or 0)
    return _without_waits(replace(trace, events=events))


def furthest_ahead(config: Config) -> float:
    """As a share of what the host is likely to take, what that of the rank takes which is furthest ahead of its GPU.

    Equal ranks let go at different times, and what is told is the memory of the one that reserves the most. How far
    their hosts differ no record says; it is taken to be as much as a time is off in the median.
    """
    return 1.0 if config.hardware.world_size == 1 else 1 / (1 + _calibration(config).error["median"])


def _calibration(config: Config) -> Calibration:
    return calibration_for(config) or load(SHIPPED)


def _without_waits(trace: Trace) -> Trace:
    gone = [0, *accumulate(event[0] == SYNC for event in trace.events)]  # before each event
    return replace(
        trace,
        events=[event for event in trace.events if event[0] != SYNC],
        steps=[step - gone[step] for step in trace.steps],
        places=[place - gone[place] for place in trace.places],
    )


def _lags_of_the_step(trace: Trace, config: Config, host: float, uses: Mapping[int, Collection[int]]) -> dict[int, int]:
    """By the index of the FREE: of a step that another has gone before."""
    clock = clocks(config, _calibration(config).costs.on_a_host(host))
    clock.run(trace.work)
    hosts: list[float] = []  # after each item of the work, in seconds: when the host gets there
    busy: list[dict[int, float]] = []  # and until when each stream is busy
    clock.run(trace.work, lambda: (hosts.append(clock.host), busy.append(dict(clock.streams))))
    next_hosts: list[float] = []
    clock.run(trace.work, lambda: next_hosts.append(clock.host))
    requested = _at_requests(trace, hosts) + _at_requests(trace, next_hosts)
    found, requests = {}, 0
    for index in range(trace.steps[-1], len(trace.events)):
        event = trace.events[index]
        requests += event[0] == ALLOC
        if event[0] == FREE and (streams := uses.get(event[1])):
            until = busy[_item_before(trace, index)]
            done = max(until.get(stream, 0.0) for stream in streams)
            found[index] = bisect_right(requested, done, lo=requests) - requests
    return found


def _at_requests(trace: Trace, hosts: Sequence[float]) -> list[float]:
    """Seconds of the host at each request of the last step."""
    indices = range(trace.steps[-1], len(trace.events))
    return [hosts[_item_before(trace, index)] for index in indices if trace.events[index][0] == ALLOC]


def _item_before(trace: Trace, index: int) -> int:
    return max(bisect_right(trace.places, index) - 1, 0)


def _uses(trace: Trace) -> dict[int, set[int]]:
    """Key -> the streams that used it beside its own."""
    own, found = {}, defaultdict(set)
    for event in trace.events:
        if event[0] == ALLOC:
            own[event[1]] = event[3]
        elif event[0] == USE and event[2] != own[event[1]]:
            found[event[1]].add(event[2])
    return found


def _origins(trace: Trace, uses: Collection[int]) -> dict[int, tuple]:
    """By the index of each FREE of a block that a side stream used: where the block was made."""
    made, found = {}, {}
    for index, event in enumerate(trace.events):
        if event[0] == ALLOC and event[1] in uses:
            made[event[1]] = origin(trace, event)
        elif event[0] == FREE and event[1] in made:
            found[index] = made[event[1]]
    return found
