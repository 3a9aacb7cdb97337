"""The ledger: at every moment holdings and slack add up to what is reserved."""

import random

import pytest

from memlab.prediction.memory.ledger import Slack, by_kind, holdings_at, moments
from memlab.simulator.allocator import CachingAllocator, Options, parse
from memlab.simulator.trace.events import Alloc, EmptyCache, Free, RecordStream, Synchronize
from memlab.simulator.trace.trace_format import Site, Trace, apply

MIB = 1 << 20
KINDS = ("weights", "activations", "gradients")


def trace_of(*events) -> Trace:
    return Trace(0, 1, events=list(events), sites=[Site(kind, "aten.mm", "m.py:1", "f", "m", (1,)) for kind in KINDS])


def random_trace(seed: int) -> Trace:
    chance, alive, events = random.Random(seed), [], []
    for key in range(400):
        nbytes = chance.choice([0, 1, 700, MIB - 1, 3 * MIB, 21 * MIB + 5])
        events.append(Alloc(key, nbytes, chance.choice([0, 0, 1]), key % 3))
        alive.append(key)
        if nbytes and chance.random() < 0.1:
            events.append(RecordStream(key, 2))
        while alive and chance.random() < 0.45:
            events.append(Free(alive.pop(chance.randrange(len(alive))), chance.choice([None, 0, 40])))
        if chance.random() < 0.02:
            events.append(chance.choice([EmptyCache(), Synchronize(key // 2)]))
    return trace_of(*events)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:20"])
@pytest.mark.parametrize("seed", range(3))
def test_everything_adds_up_at_every_moment(settings, seed):
    trace, options = random_trace(seed), parse(settings)
    found = moments(trace, range(len(trace.events)), CachingAllocator(options, 1 << 50))
    assert len(found) == len(trace.events)
    allocator = CachingAllocator(options, 1 << 50)
    for index, event in enumerate(trace.events):
        apply(event, allocator)
        moment = found[index]
        assert moment.requested + moment.slack.total == moment.reserved == allocator.reserved
        assert moment.allocated == allocator.allocated == moment.requested + moment.slack.rounding
        assert min(vars(moment.slack).values()) >= 0
    assert {index: moment.holdings for index, moment in found.items()} == holdings_at(trace, range(len(trace.events)))


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:20"])
def test_releasable_is_what_an_emptied_cache_gives_back(settings):
    trace, allocator = random_trace(7), CachingAllocator(parse(settings), 1 << 50)
    for event in trace.events:
        apply(event, allocator)
        if isinstance(event, Alloc) and event.key % 25 == 0:
            allocator.synchronize()
            releasable, before = allocator.releasable_bytes(), allocator.reserved
            allocator.empty_cache()
            assert before - allocator.reserved == releasable


def test_a_hole_is_told_from_a_free_segment():
    trace = trace_of(Alloc(0, 30 * MIB, 0, 0), Alloc(1, 2 * MIB, 0, 1), Alloc(2, 2 * MIB, 0, 1), Free(0), Free(1))
    slack = moments(trace, [4], CachingAllocator())[4].slack
    # 30 MiB are a segment of their own; both blocks of 2 MiB lie in one of 20 MiB
    assert slack == Slack(rounding=0, waiting=0, holes=18 * MIB, releasable=30 * MIB)


def test_moments_end_with_the_request_that_finds_no_room():
    """Before it gives up, the allocator gives its free segments back."""
    sizes = (10, 20, 30)
    requests = [Alloc(key, size * MIB, 0, 0) for key, size in enumerate(sizes)]
    trace = trace_of(*requests[:2], Free(0), requests[2], Free(1))
    found = moments(trace, range(5), CachingAllocator(Options(), 40 * MIB))
    assert [moment.allocated // MIB for moment in found.values()] == [10, 30, 20, 20]
    assert (found[2].slack.releasable, found[3].slack.total) == (10 * MIB, 0)


def test_the_largest_come_first():
    trace = trace_of(Alloc(0, 5, 0, 0), Alloc(1, 9, 0, 1), Alloc(2, 5, 0, 0))
    assert by_kind(holdings_at(trace, [2])[2]) == {"weights": 10, "activations": 9}
