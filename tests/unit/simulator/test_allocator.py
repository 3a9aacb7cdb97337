"""The allocator's replay: PyTorch's rules one by one, then invariants under random programs. No torch."""

import random
from itertools import pairwise

import pytest

from memlab.core.errors import ConfigError
from memlab.simulator.allocator import CachingAllocator, Options, OutOfMemory, parse

MIB = 1 << 20


def held(allocator: CachingAllocator) -> int:
    """Bytes in all blocks that are mapped: live, waiting or free."""
    free = sum(block.size for pool in allocator._pools.values() for block in pool.free)
    return free + allocator.active


@pytest.mark.parametrize(
    ("nbytes", "reserved"),
    [
        (1, 2 * MIB),  # small: a segment of 2 MiB
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),  # up to 10 MiB: a segment of 20 MiB
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # from there: rounded up to 2 MiB
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_segment_sizes(nbytes, reserved):
    allocator = CachingAllocator()
    allocator.malloc(1, nbytes)
    assert allocator.reserved == reserved


def test_allocated_counts_whole_blocks():
    allocator = CachingAllocator()
    allocator.malloc(1, 1)
    assert allocator.allocated == 512
    allocator.malloc(2, 19 * MIB + 1)  # a rest of at most 1 MiB is not split off
    assert allocator.allocated == 512 + 20 * MIB


def test_no_bytes_take_no_block():
    allocator = CachingAllocator()
    allocator.malloc(1, 0)
    assert (allocator.allocated, allocator.reserved) == (0, 0)
    allocator.free(1)
    assert allocator.active == 0


def test_best_fit_and_merging():
    allocator = CachingAllocator()
    for key, size in enumerate((64, 32, 128)):
        allocator.malloc(key, size * MIB)
    for key in range(3):
        allocator.free(key)
    allocator.malloc(3, 30 * MIB)
    assert allocator.reserved == 224 * MIB
    allocator.malloc(4, 64 * MIB)
    allocator.malloc(5, 100 * MIB)
    assert allocator.reserved == 224 * MIB
    allocator.free(5)
    allocator.malloc(6, 128 * MIB)  # the rest of 28 MiB was merged with the 100 again
    assert allocator.reserved == 224 * MIB


def test_a_stream_has_its_own_blocks():
    allocator = CachingAllocator()
    allocator.malloc(1, 32 * MIB, stream=0)
    allocator.free(1)
    allocator.malloc(2, 32 * MIB, stream=1)
    assert allocator.reserved == 64 * MIB


def test_record_stream_defers_the_free():
    allocator = CachingAllocator(release_delay=3)
    allocator.malloc(1, 32 * MIB)
    allocator.record_stream(1, stream=1)
    allocator.free(1)
    assert (allocator.allocated, allocator.active) == (0, 32 * MIB)
    allocator.malloc(2, 32 * MIB)
    assert allocator.reserved == 64 * MIB  # the first is still waiting
    allocator.synchronize()
    allocator.malloc(3, 32 * MIB)
    assert allocator.reserved == 64 * MIB


def test_record_stream_of_the_own_stream_changes_nothing():
    allocator = CachingAllocator(release_delay=1000)
    allocator.malloc(1, 32 * MIB)
    allocator.record_stream(1, stream=0)
    allocator.free(1)
    assert allocator.active == 0


def test_retry_gives_cached_memory_back_before_out_of_memory():
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.malloc(1, 60 * MIB)
    allocator.free(1)
    allocator.malloc(2, 80 * MIB)
    assert (allocator.reserved, allocator.num_alloc_retries) == (80 * MIB, 1)
    with pytest.raises(OutOfMemory) as error:
        allocator.malloc(3, 30 * MIB)
    assert error.value.requested_bytes == 30 * MIB


def test_empty_cache_keeps_split_segments():
    allocator = CachingAllocator()
    allocator.malloc(1, 4 * MIB)
    allocator.malloc(2, 64 * MIB)
    allocator.free(2)
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB


def test_expandable_segments_grow_and_shrink_by_pages():
    allocator = CachingAllocator(Options(expandable_segments=True))
    allocator.malloc(1, 30 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.malloc(2, 25 * MIB)  # 10 MiB are left of the second page
    assert allocator.reserved == 60 * MIB
    allocator.free(1)
    allocator.empty_cache()  # the page that both shared stays
    assert allocator.reserved == 40 * MIB
    allocator.malloc(3, 30 * MIB)
    assert allocator.reserved == 60 * MIB


def test_a_request_beyond_every_segment_is_out_of_memory():
    allocator = CachingAllocator(Options(expandable_segments=True), capacity=MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(1, 100 * MIB)


def test_expandable_segments_serve_any_size_from_one_hole():
    fixed, expandable = CachingAllocator(), CachingAllocator(Options(expandable_segments=True))
    for allocator in (fixed, expandable):
        for key in range(10):
            allocator.malloc(key, 40 * MIB)
        for key in range(10):
            allocator.free(key)
        allocator.malloc(10, 400 * MIB)
    assert (fixed.reserved, expandable.reserved) == (800 * MIB, 400 * MIB)


def test_max_split_size_keeps_large_blocks_whole():
    allocator = CachingAllocator(parse("max_split_size_mb:64"), capacity=250 * MIB)
    allocator.malloc(1, 100 * MIB)
    allocator.free(1)
    allocator.malloc(2, 40 * MIB)  # not from the 100
    assert allocator.reserved == 140 * MIB
    allocator.malloc(3, 70 * MIB)  # neither: more than 20 MiB would be wasted
    assert allocator.reserved == 210 * MIB
    allocator.malloc(4, 76 * MIB)  # full: the 100 is given back, without a retry
    assert (allocator.reserved, allocator.num_alloc_retries) == (186 * MIB, 0)


def test_garbage_collection_only_with_a_memory_fraction():
    collected = CachingAllocator(parse("garbage_collection_threshold:0.5,per_process_memory_fraction:0.8"), 400 * MIB)
    ignored = CachingAllocator(parse("garbage_collection_threshold:0.5"), 400 * MIB)
    for allocator in (collected, ignored):
        allocator.malloc(1, 250 * MIB)
        allocator.free(1)
        allocator.malloc(2, 260 * MIB // 2 + 130 * MIB)
    assert (collected.reserved, collected.num_alloc_retries) == (260 * MIB, 0)
    assert (ignored.reserved, ignored.num_alloc_retries) == (260 * MIB, 1)


@pytest.mark.parametrize(
    ("conf", "nbytes", "block"),
    [
        ("", 1200 * MIB, 1200 * MIB),
        ("roundup_power2_divisions:4", 1200 * MIB, 1280 * MIB),
        ("roundup_power2_divisions:4", 1024 * MIB, 1024 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 1200 * MIB, 1280 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 700 * MIB, 768 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 2500 * MIB, 2560 * MIB),
        ("roundup_power2_divisions:4", 1000, 1024),
    ],
)
def test_rounding(conf, nbytes, block):
    assert parse(conf).round(nbytes) == block


def test_options_that_torch_refuses_are_refused():
    with pytest.raises(ConfigError, match="expandable_segments"):
        parse("expandable_segment:True")
    with pytest.raises(ConfigError, match="yes"):
        parse("expandable_segments:yes")


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"])
@pytest.mark.parametrize("lag", [0, 20])
def test_no_byte_is_lost_and_no_blocks_overlap(conf, lag):
    random.seed(0)
    allocator = CachingAllocator(parse(conf), capacity=2000 * MIB, release_delay=lag)
    live: dict[int, int] = {}
    for key in range(4000):
        if live and (random.random() < 0.5 or sum(live.values()) > 1200 * MIB):
            victim = random.choice(list(live))
            del live[victim]
            allocator.free(victim)
        else:
            nbytes = random.choice([100, 3000, 700_000, 3 * MIB, 15 * MIB, 64 * MIB + 13])
            try:
                allocator.malloc(key, nbytes, stream=random.choice([0, 0, 1]))
            except OutOfMemory:
                continue
            live[key] = nbytes
            if random.random() < 0.1:
                allocator.record_stream(key, stream=1)
        if key % 500 == 0:
            allocator.empty_cache()
        assert held(allocator) == allocator.reserved <= allocator.capacity
        assert allocator.allocated <= allocator.active <= allocator.reserved
    blocks = [*allocator._live.values(), *(block for pool in allocator._pools.values() for block in pool.free)]
    spans = sorted((block.address, block.address + block.size) for block in blocks)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for key in live:
        allocator.free(key)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.active, allocator.reserved) == (0, 0, 0)


def test_no_stream_keeps_what_another_one_used_waiting():
    allocator = CachingAllocator()
    for key, stream in ((1, 1), (2, 2)):
        allocator.malloc(key, 32 * MIB)
        allocator.record_stream(key, stream)
    allocator.free(1, release_delay=100)
    allocator.free(2, release_delay=0)
    allocator.malloc(3, 32 * MIB)
    assert allocator.reserved == 64 * MIB


def test_recorded_addresses_go_to_segments_of_their_size_and_never_to_two_at_once():
    allocator = CachingAllocator(addresses={20 * MIB: [MIB, MIB], 32 * MIB: [64 * MIB, 90 * MIB]})
    for key, nbytes in ((1, 32 * MIB), (2, 9 * MIB), (3, 20 * MIB), (4, 32 * MIB)):
        allocator.malloc(key, nbytes)
    first, second, third, fourth = (allocator._live[key].address for key in (1, 2, 3, 4))
    assert (first, second) == (64 * MIB, MIB)
    assert min(third, fourth) > 1 << 47  # others lie at their recorded places
