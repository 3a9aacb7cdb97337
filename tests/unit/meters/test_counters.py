"""Torch's counters with a script that reads and resets them beside memlab."""

from types import SimpleNamespace

import pytest
from fake_allocator import Allocator

from memlab.meters.counters import Counters


@pytest.fixture
def allocator() -> Allocator:
    return Allocator()


@pytest.fixture
def script(allocator) -> SimpleNamespace:
    """What the script calls."""
    return allocator.functions()


@pytest.fixture
def counters(script) -> Counters:
    counters = Counters(script)
    counters.install()
    return counters


def peak(stats) -> int:
    assert stats["oversize_segments"]["peak"] == stats["allocated_bytes"]["all"]["peak"]
    return stats["allocated_bytes"]["all"]["peak"]


def test_memlab_resets_and_the_script_keeps_its_peaks(allocator, script, counters):
    allocator.change(100)
    allocator.change(-90)
    counters.reset_peaks(0, counters.read(0))
    allocator.change(20)
    assert peak(counters.read(0)) == 30
    assert peak(script._cuda_memoryStats(0)) == 100
    counters.reset_peaks(0, counters.read(0))
    assert (peak(counters.read(0)), peak(script._cuda_memoryStats(0))) == (30, 100)


def test_the_scripts_own_reset_is_its_own(allocator, script, counters):
    allocator.change(100)
    allocator.change(-90)
    counters.reset_peaks(0, counters.read(0))
    allocator.change(50)
    allocator.change(-50)
    script._cuda_resetPeakMemoryStats(0)
    assert counters.peaks(0, counters.read(0))[0] == 60, "memlab sees the peak before it is gone"
    assert peak(script._cuda_memoryStats(0)) == 10
    allocator.change(5)
    assert peak(script._cuda_memoryStats(0)) == 15


def test_totals_outlive_the_scripts_reset(allocator, script, counters):
    allocator.retries = 3
    script._cuda_resetAccumulatedMemoryStats(0)
    allocator.retries += 2
    assert script._cuda_memoryStats(0)["num_alloc_retries"] == 2
    assert counters.totals(0, counters.read(0)) == (5, 0)
    script._cuda_resetAccumulatedMemoryStats(0)
    assert counters.totals(0, counters.read(0)) == (5, 0)


def test_devices_are_told_apart(script, counters, allocator):
    allocator.change(100)
    allocator.change(-100)
    counters.reset_peaks(0, counters.read(0))
    assert (peak(script._cuda_memoryStats(0)), peak(script._cuda_memoryStats(1))) == (100, 0)
