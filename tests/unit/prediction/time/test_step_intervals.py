"""Intervals of a step: they fill exactly the time of the step, in order, on the host and on every stream."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from memlab.core.config import Config, Hardware
from memlab.prediction.time.clocks import COMMUNICATION, LOWER_BOUND, Costs, step_seconds
from memlab.prediction.time.step_intervals import Interval, busy_seconds, event_seconds, merged, step_intervals
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.trace_format import Piece, Trace
from memlab.simulator.trace.work_items import (
    EVERYTHING,
    HALF,
    PINNED,
    Collective,
    Copy,
    HostWaits,
    HostWork,
    KernelLaunch,
    RecordEvent,
    StreamWaitsForCollective,
    StreamWaitsForEvent,
)

CONFIG = Config(
    hardware=Hardware(
        gpu="a round one", gpus=4, bf16_tflops=100.0, fp32_tflops=10.0, memory_gb_per_s=1000.0, link_gb_per_s=100.0,
        host_gb_per_s=10.0,
    )
)  # fmt: skip
COSTS = Costs(operator_s=1e-4, module_s=2e-4, collective_s=5e-5, host_byte_s=1e-11, compute=1.3)
MILLI_FLOPS = 10**11


def random_work(seed: int) -> list:
    chance, work, events, collectives = random.Random(seed), [], 0, 0
    for _ in range(400):
        operators, modules, stream = chance.randrange(4), chance.randrange(2), chance.choice([0, 0, 0, 7])
        kinds = [
            KernelLaunch(operators, modules, stream, HALF, chance.randrange(MILLI_FLOPS), (10**6,)),
            Copy(operators, modules, stream, chance.random() < 0.3, PINNED, chance.randrange(10**7)),
            Collective(operators, modules, 0, 0, 4, chance.randrange(10**8)),
            RecordEvent(operators, modules, stream, events),
            HostWork(operators, modules, (10**7,)),
        ]
        if events:
            kinds += [HostWaits(operators, modules, chance.choice([EVERYTHING, events - 1]))]
            kinds += [StreamWaitsForEvent(operators, modules, stream, events - 1)]
        if collectives:
            kinds += [StreamWaitsForCollective(operators, modules, stream, collectives - 1)]
        work.append(chance.choice([kinds[0], kinds[0], *kinds]))
        events += isinstance(work[-1], RecordEvent)
        collectives += isinstance(work[-1], Collective)
    return work


@pytest.mark.parametrize("costs", [LOWER_BOUND, COSTS])
@pytest.mark.parametrize("seed", range(4))
def test_the_intervals_fill_the_time_of_the_step_in_order(seed, costs):
    work = random_work(seed)
    found = step_intervals(CONFIG, work, costs)
    assert found.seconds == pytest.approx(step_seconds(CONFIG, {0: Trace(0, 4, work=work)}, costs), rel=1e-12)
    for intervals in (found.host, *found.streams.values()):
        assert all(first.end <= second.begin for first, second in pairwise(intervals))
        assert intervals[0].begin >= 0 and intervals[-1].end <= found.seconds
    assert all(first <= second for (first, _), (second, _) in pairwise(found.moments))
    if costs == COSTS:
        assert sum(each.seconds for each in found.host) == pytest.approx(found.seconds)  # it never pauses


def test_a_stream_that_is_always_busy_has_all_its_kernels_once():
    work = [KernelLaunch(1, 0, 0, HALF, MILLI_FLOPS * each, (0,)) for each in (1, 2, 3)]
    found = step_intervals(CONFIG, work, replace(LOWER_BOUND, operator_s=1e-4))
    assert found.seconds == pytest.approx(6e-3)
    assert [(each.item, each.seconds) for each in found.streams[0]] == [
        (index, pytest.approx(seconds)) for index, seconds in enumerate((1e-3, 2e-3, 3e-3))
    ]


def test_the_host_waits_where_the_step_says_so():
    kernel = KernelLaunch(10, 0, 0, HALF, MILLI_FLOPS, (0,))
    found = step_intervals(CONFIG, [kernel, HostWaits(0, 0, EVERYTHING)], replace(LOWER_BOUND, operator_s=1e-4))
    busy, waits = found.host
    assert (busy.waits, waits.waits) == (False, True)
    assert (busy.seconds, waits.seconds) == (pytest.approx(1e-3), pytest.approx(1e-3))
    assert found.streams[0] == [Interval(0, pytest.approx(1e-3), pytest.approx(2e-3))]
    assert [done for _, done in found.moments] == [2, 1, 2]


def test_collectives_have_a_stream_of_their_own():
    gather = Collective(0, 0, 0, 0, 4, 400_000_000)  # 300 MB over the link: 3 ms
    found = step_intervals(CONFIG, [gather, StreamWaitsForCollective(0, 0, 0, 0)], LOWER_BOUND)
    assert [each.seconds for each in found.streams[COMMUNICATION]] == [pytest.approx(3e-3)]


def test_overlapping_intervals_are_joined():
    intervals = [Interval(3, 4.0, 5.0), Interval(0, 0.0, 2.0), Interval(1, 1.0, 3.0), Interval(2, 3.0, 3.5)]
    assert merged(intervals) == [Interval(0, 0.0, 3.5), Interval(3, 4.0, 5.0)]
    assert busy_seconds(intervals) == pytest.approx(4.5)


def test_events_happen_when_the_host_is_done_with_the_item_before():
    work = [KernelLaunch(operators, 0, 0, HALF, 0, (0,)) for operators in (1, 2, 3)]
    events = [BeginPhase(0), Alloc(0, 1, 0, 0), BeginPhase(0), Alloc(1, 1, 0, 0), Free(0), BeginPhase(0), Free(1)]
    pieces = [Piece(None, None, True), Piece(1, None, True), Piece(None, None, True)]
    trace = Trace(0, 1, events=events, phases=["forward"], steps=[2], work=work, events_before=[3, 3, 4], pieces=pieces)
    seconds = event_seconds(CONFIG, trace, replace(LOWER_BOUND, operator_s=1e-4))
    assert seconds == {2: 0.0, 3: pytest.approx(2e-4), 4: pytest.approx(5e-4)}
