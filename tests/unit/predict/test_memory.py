"""How much of a GPU the allocator can have."""

import pytest

from memlab.machine import GIB
from memlab.predict.constants import outside_the_allocator
from memlab.predict.events import ALLOC, EMPTY, FREE, PHASE, START, SYNC, USE, Site, Trace
from memlab.predict.memory import estimate

PHASES = ["", "model_build", "forward"]


def trace(nbytes: int) -> Trace:
    """A step that takes one block."""
    events = [(PHASE, 1), (PHASE, 0), (EMPTY,), (START,), (PHASE, 2), (ALLOC, 1, nbytes, 0, 0), (PHASE, 0)]
    return Trace(0, 1, events=events, phases=PHASES, sites=[Site("weights", "", "", "", "", ())], steps=[4])


@pytest.fixture
def verdict(config):
    def of(gib: float, conf: str) -> str:
        hardware = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.gpus": 1}
        values = config({**hardware, "hardware.memory_gib": 100.0, "allocator.conf": conf})
        return estimate(values, [trace(int(gib * GIB))]).verdict

    return of


def test_beside_the_context_all_of_it(verdict):
    room = 100 - outside_the_allocator("NVIDIA H200", 1) / GIB
    assert verdict(room - 0.01, "") == "fits"
    assert verdict(room + 0.01, "") == "does_not_fit"


def test_a_fraction_is_one_of_the_whole_device(verdict):
    assert verdict(39.99, "per_process_memory_fraction:0.4") == "fits"
    assert verdict(40.01, "per_process_memory_fraction:0.4") == "does_not_fit"
    assert verdict(99.9, "per_process_memory_fraction:0.9999") == "does_not_fit"  # the context needs its part


def side_streams(world_size: int) -> Trace:
    """Reserved bytes of a step that frees a block which a side stream used, and asks for one like it. The host waits
    only after that."""
    events = [
        (PHASE, 1), (PHASE, 0), (EMPTY,), (START,), (PHASE, 2),
        (ALLOC, 1, GIB, 0, 0), (USE, 1, 1), (FREE, 1), (ALLOC, 2, GIB, 0, 0), (SYNC, 2), (PHASE, 0),
    ]  # fmt: skip
    site = Site("weights", "", "", "", "", ())
    return Trace(0, world_size, events=events, phases=PHASES, sites=[site], steps=[4], work=[], places=[])


@pytest.mark.parametrize(("gpus", "reserved"), [(1, 1), (4, 2)])
def test_without_figures_for_the_clocks_one_gpu_is_at_once_and_several_wait(config, gpus, reserved):
    hardware = {"hardware.device": "cuda", "hardware.gpu": "a round one", "hardware.gpus": gpus}
    values = config({**hardware, "hardware.memory_gib": 100.0, "hardware.memory_gb_per_s": None})
    used = estimate(values, [side_streams(gpus)]).used
    assert used - outside_the_allocator("a round one", gpus) == reserved * GIB
