"""Readings on a device, with torch's own functions above a stand-in of its allocator."""

import pytest
import torch
from fake_allocator import Allocator

from memlab.attach.memory import Memory
from memlab.worker.memory import CudaMemory


@pytest.fixture
def allocator(monkeypatch) -> Allocator:
    """The allocator of cuda:0, as torch.cuda reads and resets it."""
    allocator = Allocator()
    for name, function in vars(allocator.functions()).items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: allocator.has_context, raising=False)
    for name, value in {
        "is_initialized": True,
        "current_device": 0,
        "mem_get_info": (100, 1000),
        "device_count": 1,
        "_get_device_index": 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value, **kwargs: value)
        monkeypatch.setattr(torch.cuda.memory, name, lambda *args, value=value, **kwargs: value, raising=False)
    return allocator


def test_each_turn_has_its_own_peaks_and_the_script_those_of_the_process(allocator):
    memory = Memory()
    memory.install()
    allocator.change(100)
    allocator.change(-60)
    first = memory.turn()
    allocator.change(10)
    second = memory.turn()
    assert (first.peak_allocated, first.allocated, first.peak_reserved, first.used) == (100, 40, 200, 900)
    assert (second.peak_allocated, second.allocated) == (50, 50)
    assert torch.cuda.max_memory_allocated() == 100
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 50


def test_a_process_is_not_made_to_have_a_context(allocator, monkeypatch):
    """Each rank of a node begins on cuda:0, and may ask for its properties before it chooses its own GPU."""
    read: list[int] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: read.append(device) or (100, 1000))
    allocator.has_context = False
    memory = Memory()
    assert memory.turn().used is None and memory.device is None and not read
    allocator.has_context = True
    assert memory.turn().used == 900 and memory.device == 0


def test_the_drivers_figure_is_of_the_current_device(allocator, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 - 10 * device, 1000))
    memory = Memory()
    assert memory.turn().used == 900
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert memory.turn().used == 910


def test_what_the_script_resets_is_not_lost(allocator):
    memory = Memory()
    memory.install()
    allocator.change(100)
    allocator.change(-60)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 40
    assert memory.turn().peak_allocated == 100
    assert torch.cuda.max_memory_allocated() == 40


def test_memlabs_own_worker_reads_the_same_counters(allocator):
    memory = CudaMemory(torch.device("cuda", 0))
    memory.install()
    memory.enter("model_build")
    allocator.change(100)
    allocator.change(-60)
    torch.cuda.reset_peak_memory_stats()  # as DeepSpeed does
    memory.enter("forward")
    allocator.change(20)
    memory.enter(None)
    peaks = {name: (phase.peak_allocated_bytes, phase.end_allocated_bytes) for name, phase in memory.phases.items()}
    assert peaks == {"model_build": (100, 40), "forward": (60, 60)}
    assert memory.retries_and_ooms() == (0, 0)
