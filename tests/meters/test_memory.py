"""Readings on a device, with torch's own functions above a stand-in of its allocator."""

import pytest
import torch
from fake_allocator import Allocator

from memlab.meters.memory import Memory, Peaks, Reading
from memlab.meters.options import MeterOptions
from memlab.meters.phases import BACKWARD, ENGINE_INIT, OPTIMIZER_STEP
from memlab.meters.session import Session


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
    assert (first.peak_allocated_bytes, first.end_allocated_bytes) == (100, 40)
    assert (first.peak_reserved_bytes, first.used_bytes) == (200, 900)
    assert (second.peak_allocated_bytes, second.end_allocated_bytes) == (50, 50)
    assert torch.cuda.max_memory_allocated() == 100
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 50


def test_a_process_is_not_made_to_have_a_context(allocator, monkeypatch):
    """Each rank of a node begins on cuda:0, and may ask for its properties before it chooses its own GPU."""
    read: list[int] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: read.append(device) or (100, 1000))
    allocator.has_context = False
    memory = Memory()
    assert memory.turn().used_bytes is None and memory.device is None and not read
    allocator.has_context = True
    assert memory.turn().used_bytes == 900 and memory.device == 0


def test_the_drivers_figure_is_of_the_current_device(allocator, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 - 10 * device, 1000))
    memory = Memory()
    assert memory.turn().used_bytes == 900
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert memory.turn().used_bytes == 910


def test_what_the_script_resets_is_not_lost(allocator):
    memory = Memory()
    memory.install()
    allocator.change(100)
    allocator.change(-60)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 40
    assert memory.turn().peak_allocated_bytes == 100
    assert torch.cuda.max_memory_allocated() == 40


def test_a_further_training_starts_over_with_what_was_before_its_first_step(allocator, monkeypatch):
    """A launch of several points: one model and one engine, then training after training."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    session = Session(MeterOptions("first", started_at=1.0), Memory())
    forgotten: list[str] = []
    session.callbacks.starts_over = lambda: forgotten.append(session.options.folder)
    allocator.change(100)
    session.timeline.begin_base(None)
    session.start_over(MeterOptions("first"))
    build = session.figures.phases["model_build"]
    assert (build.peak_allocated_bytes, session.figures.total.peak_allocated_bytes) == (100, None)
    assert build.seconds > 0 and session.figures.total.host_peak_bytes == build.host_peak_bytes

    with session.running(OPTIMIZER_STEP):
        allocator.change(20)
    session.steps_done, session.facts["version"] = 1, 2
    assert session.figures.total.peak_allocated_bytes == 120
    session.start_over(MeterOptions("second"))
    assert list(session.figures.phases) == ["model_build"] and session.figures.phases["model_build"].seconds == 0
    assert (session.steps_done, session.facts, forgotten) == (0, {"version": 2}, ["second"])
    with session.running(OPTIMIZER_STEP):
        allocator.change(5)
    assert session.figures.total.peak_allocated_bytes == 125


def test_while_counting_is_paused_the_peaks_stay(allocator):
    peaks, counted = Peaks(), Reading(host_rss_bytes=9, host_peak_bytes=9, end_allocated_bytes=1)
    counted.peak_allocated_bytes = counted.peak_active_bytes = 3
    counted.peak_reserved_bytes = 9
    assert peaks.fold(counted) and not peaks.fold(Reading(host_rss_bytes=8, host_peak_bytes=20))
    assert (peaks.peak_allocated_bytes, peaks.end_allocated_bytes, peaks.host_peak_bytes) == (3, 1, 20)
    assert (peaks.host_rss_bytes, peaks.used_bytes) == (8, None)


def test_what_an_optimizer_does_while_its_engine_is_made_is_no_step(allocator):
    """DeepSpeed's engine for 16 bits at stage 0 makes the optimizer's states by a step of its own."""
    session, weight = Session(MeterOptions("folder"), Memory()), torch.nn.Parameter(torch.zeros(1))
    session.timeline.is_marked_by_script = True
    optimizer = torch.optim.SGD([weight])
    session.optimizer_made(optimizer)

    def step() -> None:
        session.optimizer_step_begins()
        allocator.change(10)
        session.optimizer_step_ends()

    with session.running(ENGINE_INIT):
        step()
    assert list(session.figures.phases) == ["model_build", ENGINE_INIT]
    step()  # by the script, before it trains
    with session.running(BACKWARD):
        session.forward_begins()
    session.close_step()
    assert session.steps_done == 0
