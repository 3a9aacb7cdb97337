"""Memory over time: the curve is the replay's, its parts are the run's, and a sample keeps the extremes."""

import random
from functools import partial
from types import SimpleNamespace

import pytest

from memlab.analyse.explain.explained import History
from memlab.analyse.explain.placements import ROUNDING, Part, by_kind, timeline
from memlab.analyse.explain.snapshot import AtEnd, Entry, Snapshot
from memlab.analyse.explain.snapshot_trace import trace_of
from memlab.prediction.memory.ledger import by_kind as kinds_of
from memlab.prediction.memory.ledger import moments
from memlab.simulator.allocator import CachingAllocator, Options, RecordingAllocator
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.trace_format import Piece, Site, Trace

MIB = 1 << 20
SITES = [Site(kind, "", "", "", "", ()) for kind in ("weights", "activations", "gradients")]


def rank(trace, peak=0, capacity=1 << 40):
    recorder = partial(RecordingAllocator, Options(), capacity)
    return SimpleNamespace(history=History(trace, "", recorder), peak=SimpleNamespace(event=peak))


def random_trace(seed: int, requests: int) -> Trace:
    chance, alive, events = random.Random(seed), [], []
    for key in range(requests):
        events.append(Alloc(key, chance.randrange(1, 30 * MIB), 0, chance.randrange(len(SITES))))
        alive.append(key)
        while alive and chance.random() < 0.48:
            events.append(Free(alive.pop(chance.randrange(len(alive)))))
    return Trace(0, 1, events=events, sites=SITES)


@pytest.mark.parametrize("buckets", [1, 7, 100, 10_000])
def test_a_sample_keeps_the_extremes(buckets):
    line = timeline(rank(random_trace(3, 2_000)))
    begin, end = 50, len(line.allocated)
    sample = line.sampled(begin, end, buckets)
    assert sample == sorted(set(sample)) and sample[0] == begin and sample[-1] == end - 1
    assert len(sample) <= 4 * buckets + 1
    for values, extremes in ((line.allocated, (min, max)), (line.reserved, (max,))):
        for extreme in extremes:
            assert extreme(values[event] for event in sample) == extreme(values[begin:end])


def test_curve_and_kinds_are_those_of_the_moments():
    trace = random_trace(4, 500)
    line, events = timeline(rank(trace)), [0, 7, 333, len(trace.events) - 1]
    found = moments(trace, events, CachingAllocator())
    assert [line.allocated[event] for event in events] == [found[event].allocated for event in events]
    assert [line.reserved[event] for event in events] == [found[event].reserved for event in events]
    stacks = by_kind(trace, events, line.allocated)
    for place, event in enumerate(events):
        own = {kind: values[place] for kind, values in stacks.items() if kind != ROUNDING and values[place]}
        assert own == kinds_of(found[event].holdings)
        assert stacks[ROUNDING][place] == found[event].slack.rounding
    assert list(stacks) == sorted(stacks, key=lambda kind: -max(stacks[kind]))


def test_pieces_of_one_phase_and_step_are_one_part():
    """A command's pieces carry their steps. The step of the peak begins with its first part."""
    phases = ["load", "forward", "backward"]
    begins = [(0, None), (1, 1), (1, 1), (2, 1), (1, 2)]
    events = [Alloc(9, MIB, 0, 0)]
    for key, (phase, _) in enumerate(begins):
        events += [BeginPhase(phase), Alloc(key, MIB, 0, 0)]
    trace = Trace(
        0, 1, events=events, sites=SITES, phases=phases, pieces=[Piece(step, None, True) for _, step in begins]
    )
    line = timeline(rank(trace, peak=8))
    assert line.parts == (
        Part("", None, 0, 1),
        Part("load", None, 1, 3),
        Part("forward", 1, 3, 7),
        Part("backward", 1, 7, 9),
        Part("forward", 2, 9, 11),
    )
    assert line.peak_step == (3, 9)


def test_steps_of_memlabs_own_training_are_those_of_the_trace():
    events = [BeginPhase(0), Alloc(0, MIB, 0, 0), BeginPhase(1), Alloc(1, MIB, 0, 0), BeginPhase(1)]
    trace = Trace(0, 1, events=events, sites=SITES, phases=["engine_init", "forward"], steps=[2, 4])
    assert [part.step for part in timeline(rank(trace)).parts] == [None, 1, 2]


def test_an_out_of_memory_ends_it():
    trace = Trace(0, 1, events=[Alloc(0, 30 * MIB, 0, 0), Alloc(1, 30 * MIB, 0, 0), Free(0)], sites=SITES)
    line = timeline(rank(trace, capacity=40 * MIB))
    assert line.allocated == [30 * MIB] and line.parts == (Part("", None, 0, 1),)


def test_a_history_has_a_clock():
    live = [AtEnd(64, 512, 0, ())]
    entries = [
        Entry("segment_alloc", 1 << 30, 2 * MIB, 0, (), "", 5_000_000),
        Entry("alloc", 1 << 30, 1024, 0, (), "", 5_000_002),
        Entry("free_requested", 1 << 30, 1024, 0, (), "", 5_500_000),
        Entry("free_completed", 1 << 30, 1024, 0, (), "", 5_500_000),
        Entry("segment_free", 1 << 30, 2 * MIB, 0, (), "", 6_000_000),
    ]
    measured = trace_of(Snapshot(entries, live, 0, {}), 0, 1)
    assert measured.seconds == [0, 2e-6, 0.5, 1.0]
    assert trace_of(Snapshot([entry._replace(time_us=0) for entry in entries], live, 0, {}), 0, 1).seconds is None
