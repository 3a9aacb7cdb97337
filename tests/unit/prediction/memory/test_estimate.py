"""How much of a GPU the allocator can have."""

from dataclasses import replace

import pytest

from memlab.core.sizes import GIB
from memlab.prediction.memory import rank_replays
from memlab.prediction.memory.rank_replays import FAST_HOST
from memlab.prediction.memory.rank_results import estimate, rank_results
from memlab.prediction.memory.release_delay import furthest_ahead
from memlab.prediction.time.calibrate import shipped
from memlab.simulator.outside import parts
from memlab.simulator.outside.parts import outside_bytes, parts_of
from memlab.simulator.trace.events import Alloc, BeginPhase, BeginPoint, EmptyCache, Free, RecordStream, Synchronize
from memlab.simulator.trace.trace_format import Site, Trace

PHASES = ["", "model_build", "forward"]


def trace(nbytes: int) -> Trace:
    """A step that takes one block."""
    events = [
        BeginPhase(1),
        BeginPhase(0),
        EmptyCache(),
        BeginPoint(),
        BeginPhase(2),
        Alloc(1, nbytes, 0, 0),
        BeginPhase(0),
    ]
    return Trace(0, 1, events=events, phases=PHASES, sites=[Site("weights", "", "", "", "", ())], steps=[4])


@pytest.fixture
def verdict(config):
    def of(gib: float, conf: str) -> str:
        hardware = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.gpus": 1}
        values = config({**hardware, "hardware.memory_gib": 100.0, "allocator.conf": conf})
        return estimate(values, [trace(int(gib * GIB))], shipped()).verdict

    return of


def test_beside_the_context_all_of_it(verdict):
    room = 100 - outside_bytes(parts_of([], parts.shipped())) / GIB
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
        BeginPhase(1), BeginPhase(0), EmptyCache(), BeginPoint(), BeginPhase(2),
        Alloc(1, GIB, 0, 0), RecordStream(1, 1), Free(1), Alloc(2, GIB, 0, 0), Synchronize(2), BeginPhase(0),
    ]  # fmt: skip
    site = Site("weights", "", "", "", "", ())
    return Trace(0, world_size, events=events, phases=PHASES, sites=[site], steps=[4], work=[], events_before=[])


@pytest.mark.parametrize(("gpus", "reserved"), [(1, 1), (4, 2)])
def test_without_figures_for_the_clocks_one_gpu_is_at_once_and_several_wait(config, gpus, reserved):
    hardware = {"hardware.device": "cuda", "hardware.gpu": "a round one", "hardware.gpus": gpus}
    values = config({**hardware, "hardware.memory_gib": 100.0, "hardware.memory_gb_per_s": None})
    used = estimate(values, [side_streams(gpus)], shipped()).used
    assert used - outside_bytes(parts_of([], parts.shipped())) == reserved * GIB


@pytest.mark.parametrize(("memory_gib", "replays"), [(100.0, 1), (4.0, 2)])
def test_who_has_room_enough_is_not_asked_when_side_streams_let_go(config, monkeypatch, memory_gib, replays):
    asked = []
    replayed = rank_replays.replay_points
    monkeypatch.setattr(
        rank_replays, "replay_points", lambda *args, **options: asked.append(1) or replayed(*args, **options)
    )
    hardware = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.gpus": 4}
    values = config({**hardware, "hardware.memory_gib": memory_gib})
    assert estimate(values, [side_streams(4)], shipped()).verdict == "fits"
    assert len(asked) == replays


def test_the_rank_with_the_least_room_decides_the_probability(config):
    """One that runs out of memory ends early, and so with less reserved than another that fits."""
    hardware = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.gpus": 2}
    values = config({**hardware, "hardware.memory_gib": 100.0})
    ends, fits = trace(60 * GIB), trace(70 * GIB)
    ends.events[6:6] = [Alloc(2, 50 * GIB, 0, 0)]
    (ranks,) = rank_results([values], [{0: ends, 1: replace(fits, rank=1)}], shipped())
    assert [rank.status for rank in ranks] == ["gpu_oom", "ok"]
    assert ranks[0].peak_reserved_bytes < ranks[1].peak_reserved_bytes
    assert ranks[0].fit_probability < 0.1
    assert ranks[1].fit_probability is None


def test_the_range_is_from_at_once_to_a_host_far_ahead(config, monkeypatch):
    """What side streams hold is in the requests that the host makes while the GPU is busy with it."""
    asked = []
    monkeypatch.setattr(rank_replays, "with_release_delays", lambda trace, config, costs: asked.append(costs) or trace)
    hardware = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.gpus": 4}
    figures = {"memory_gb_per_s": 1.0, "bf16_tflops": 1.0, "fp32_tflops": 1.0, "host_gb_per_s": 1.0, "link_gb_per_s": 1}
    values = config({**hardware, **{f"hardware.{name}": value for name, value in figures.items()}})
    (ranks,) = rank_results([values], [{0: side_streams(4)}], shipped())
    hosts = furthest_ahead(values, shipped()), FAST_HOST
    assert asked == [shipped().costs.on_a_host(host) for host in hosts]
    assert ranks[0].peak_reserved_bytes == GIB
    assert ranks[0].peak_reserved_range_bytes == [GIB, 2 * GIB]


def test_a_trace_without_a_named_phase_has_a_verdict(config):
    events = [BeginPhase(0), BeginPoint(), Alloc(1, GIB, 0, 0)]
    hardware = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.gpus": 1}
    unnamed = Trace(0, 1, events=events, phases=[""], sites=[Site("weights", "", "", "", "", ())], steps=[1])
    assert estimate(config({**hardware, "hardware.memory_gib": 100.0}), [unnamed], shipped()).verdict == "fits"
