"""Release delays of blocks that a side stream used, computed with the clocks of the step time model.

When such a block is freed, torch records an event on the side stream. The block can be reused once a later request sees
that the GPU has reached the event. The delay depends on how far the host runs ahead of the GPU: hardly at all where the
step is host-bound, by many layers where it is bound by the GPU. time/clocks.py models both clocks.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memlab.core.config import Config
from memlab.prediction.time.calibrate import Calibration
from memlab.prediction.time.clocks import Clocks, Costs
from memlab.prediction.traces.shared_launch import origin
from memlab.simulator.trace.events import Alloc, Free, RecordStream, Synchronize
from memlab.simulator.trace.trace_format import Trace


def with_release_delays(trace: Trace, config: Config, costs: Costs) -> Trace:
    """Return the trace with a release delay at each Free of a block that a side stream used: after how many further
    requests the block can be reused. The Synchronize events are removed, because the delays include the host's waits.

    The hardware entry must have the speeds for a step time. ``costs``: of the step, on the host of this rank.

    Only the last step of a trace has its work counted. A block that an earlier step frees gets the delay of a block of
    the same origin in the last step.
    """
    uses = _uses(trace)
    delays = _delays_of_the_step(trace, Clocks(config, costs), uses)
    known: dict[tuple, deque[int]] = defaultdict(deque)
    origins = _origins(trace, uses)
    for index, delay in delays.items():
        known[origins[index]].append(delay)
    events: list[Any] = list(trace.events)  # those at the indices of ``origins`` are of type Free
    for index, where in origins.items():
        own = delays.get(index)
        if own is None and known[where]:
            own = known[where][0]
            known[where].rotate(-1)
        events[index] = events[index]._replace(release_delay=own or 0)
    return replace(trace, events=events).only([not isinstance(event, Synchronize) for event in events])


def furthest_ahead(config: Config, calibration: Calibration) -> float:
    """Return the factor on host time for the rank whose host runs furthest ahead of its GPU.

    Equal ranks free memory at different times, and the prediction is for the rank that reserves the most. No record
    says how much the hosts differ; the median error of predicted step times is taken for it.
    """
    return 1.0 if config.hardware.world_size == 1 else 1 / (1 + calibration.error["median"])


def _delays_of_the_step(trace: Trace, clock: Clocks, uses: Mapping[int, Collection[int]]) -> dict[int, int]:
    """Return the release delays of the last step by the index of the Free event. The clocks run the step once before,
    as another step precedes it."""
    clock.run(trace.work)
    # After each item of the work, in seconds: the host's clock; stream -> until when it is busy.
    moments: list[tuple[float, dict[int, float]]] = []
    clock.run(trace.work, lambda: moments.append((clock.host, dict(clock.streams))))
    next_hosts: list[float] = []
    clock.run(trace.work, lambda: next_hosts.append(clock.host))
    requested = _at_requests(trace, [host for host, _ in moments]) + _at_requests(trace, next_hosts)
    found, requests = {}, 0
    for index in range(trace.steps[-1], len(trace.events)):
        event = trace.events[index]
        requests += isinstance(event, Alloc)
        if isinstance(event, Free) and (streams := uses.get(event.key)):
            _, until = moments[_item_before(trace, index)]
            done = max(until.get(stream, 0.0) for stream in streams)
            found[index] = bisect_right(requested, done, lo=requests) - requests
    return found


def _at_requests(trace: Trace, hosts: Sequence[float]) -> list[float]:
    """Return the host's clock in seconds at each request of the last step."""
    indices = range(trace.steps[-1], len(trace.events))
    return [hosts[_item_before(trace, index)] for index in indices if isinstance(trace.events[index], Alloc)]


def _item_before(trace: Trace, index: int) -> int:
    return max(bisect_right(trace.events_before, index) - 1, 0)


def _uses(trace: Trace) -> dict[int, set[int]]:
    """Map the key of each block to the side streams that used it."""
    own, found = {}, defaultdict(set)
    for event in trace.events:
        if isinstance(event, Alloc):
            own[event.key] = event.stream
        elif isinstance(event, RecordStream) and event.stream != own[event.key]:
            found[event.key].add(event.stream)
    return found


def _origins(trace: Trace, uses: Collection[int]) -> dict[int, tuple]:
    """Map the index of each Free of a block that a side stream used to the origin of the block."""
    made, found = {}, {}
    for index, event in enumerate(trace.events):
        if isinstance(event, Alloc) and event.key in uses:
            made[event.key] = origin(trace, event)
        elif isinstance(event, Free) and event.key in made:
            found[index] = made[event.key]
    return found
