"""Intervals of blocks and segments: after every event they hold what the allocator holds."""

import random

import pytest

from memlab.analyse.explain.placements import Placements
from memlab.simulator.allocator import CachingAllocator, Options, RecordingAllocator, parse
from memlab.simulator.trace.events import Alloc, EmptyCache, Free, RecordStream
from memlab.simulator.trace.trace_format import Trace, apply

MIB = 1 << 20


def random_trace(seed: int) -> Trace:
    chance, alive, events = random.Random(seed), [], []
    for key in range(400):
        events.append(Alloc(key, chance.choice([0, 700, MIB - 1, 3 * MIB, 21 * MIB + 5]), chance.choice([0, 0, 1]), 0))
        alive.append(key)
        if chance.random() < 0.1:
            events.append(RecordStream(key, 2))
        while alive and chance.random() < 0.48:
            events.append(Free(alive.pop(chance.randrange(len(alive))), chance.choice([None, 40])))
        if chance.random() < 0.03:
            events.append(EmptyCache())
    return Trace(0, 1, events=events)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:20"])
def test_they_hold_what_the_allocator_holds_after_every_event(settings):
    trace, allocator = random_trace(1), CachingAllocator(parse(settings))
    found = Placements(trace, RecordingAllocator(parse(settings)))
    assert found.events == len(trace.events)
    for index, event in enumerate(trace.events):
        apply(event, allocator)
        assert sum(block.size for block in found.blocks if block.begin <= index < block.freed) == allocator.allocated
        in_use = [block for block in found.blocks if block.begin <= index < block.reusable]
        assert sum(block.size for block in in_use) == allocator.active
        segments = [segment for segment in found.segments if segment.begin <= index < segment.end]
        assert sum(segment.size for segment in segments) == allocator.reserved
        for block in in_use[:: index % 40 + 1]:
            assert block.nbytes <= block.size
            ranges = [(segment.address, segment.address + segment.size) for segment in segments]
            holding = sum(
                max(0, min(stop, block.address + block.size) - max(start, block.address)) for start, stop in ranges
            )
            assert holding == block.size


def test_pages_of_an_expandable_segment_go_back_alone():
    events = [Alloc(0, 45 * MIB, 0, 0), Alloc(1, 5 * MIB, 0, 0), Free(0), EmptyCache()]
    found = Placements(Trace(0, 1, events=events), RecordingAllocator(parse("expandable_segments:True")))
    (block, kept) = found.blocks
    assert (block.begin, block.freed, kept.freed) == (0, 2, 4)
    left = [segment for segment in found.segments if segment.end == 4]
    assert [(segment.address - block.address, segment.size, segment.page) for segment in left] == [
        (40 * MIB, 20 * MIB, 20 * MIB)
    ]
    assert {segment.base for segment in found.segments} == {block.address}


def test_an_out_of_memory_ends_the_intervals_before_it():
    events = [Alloc(0, 30 * MIB, 0, 0), Alloc(1, 30 * MIB, 0, 0), Free(0)]
    found = Placements(Trace(0, 1, events=events), RecordingAllocator(Options(), 40 * MIB))
    assert found.events == 1
    assert [(block.begin, block.freed, block.reusable) for block in found.blocks] == [(0, 1, 1)]
    assert [(segment.begin, segment.end) for segment in found.segments] == [(0, 1)]
