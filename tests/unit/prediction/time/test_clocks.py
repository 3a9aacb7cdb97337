"""The clocks of a step, by hand. No torch."""

from dataclasses import replace

import pytest

from memlab.core.config import Config, Hardware, ZeroStage
from memlab.core.record import WORK
from memlab.prediction.time.clocks import LOWER_BOUND, Costs, has_clocks, missing_specifications, step_seconds
from memlab.prediction.time.work_by_phase import work_by_phase
from memlab.simulator.constants import HOST_LINK_SHARES, host_link_share
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import (
    COLLECTIVES,
    CONVERTED_FROM_HOST,
    CONVERTED_TO_HOST,
    EVERYTHING,
    HALF,
    PAGEABLE,
    PINNED,
    SINGLE,
    TF32,
    BeginWorkPhase,
    Collective,
    Copy,
    HostWaits,
    HostWork,
    KernelLaunch,
    RecordEvent,
    StreamWaitsForCollective,
    StreamWaitsForEvent,
    link_bytes,
)

HARDWARE = Hardware(
    gpu="a round one",
    gpus=4,
    bf16_tflops=100.0,
    fp32_tflops=10.0,
    memory_gb_per_s=1000.0,
    link_gb_per_s=100.0,
    host_gb_per_s=10.0,
)
CONFIG = Config(hardware=HARDWARE)
ONE_GPU = Config(hardware=replace(HARDWARE, gpus=1))
MILLI_FLOPS, MILLI_BYTES = 10**11, 10**9  # what the GPU does in a millisecond, in half precision
GATHER = COLLECTIVES.index("all_gather")


def seconds(*work, costs: Costs = LOWER_BOUND, config: Config = CONFIG) -> float:
    return step_seconds(config, {0: Trace(0, 4, work=list(work))}, costs)


def test_a_kernel_takes_the_longer_of_arithmetic_and_memory():
    assert seconds(KernelLaunch(1, 0, 0, HALF, 5 * MILLI_FLOPS, (MILLI_BYTES,))) == pytest.approx(5e-3)
    assert seconds(KernelLaunch(1, 0, 0, HALF, MILLI_FLOPS, (2 * MILLI_BYTES, 3 * MILLI_BYTES))) == pytest.approx(5e-3)
    assert seconds(KernelLaunch(1, 0, 0, SINGLE, MILLI_FLOPS, (0,))) == pytest.approx(10e-3)  # single precision
    assert seconds(KernelLaunch(1, 0, 0, TF32, MILLI_FLOPS, (0,))) == pytest.approx(2e-3)  # half the peak of bf16


def test_the_host_runs_ahead_and_the_slower_of_the_two_decides():
    kernels = [KernelLaunch(10, 0, 0, HALF, MILLI_FLOPS, (0,))] * 8
    assert seconds(*kernels, costs=replace(LOWER_BOUND, operator_s=2e-5)) == pytest.approx(8e-3)
    assert seconds(*kernels, costs=replace(LOWER_BOUND, operator_s=2e-4)) == pytest.approx(16e-3)


def test_who_waits_for_the_device_does_not_run_ahead():
    kernel = KernelLaunch(10, 0, 0, HALF, MILLI_FLOPS, (0,))
    costs = replace(LOWER_BOUND, operator_s=1e-4)
    assert seconds(kernel, kernel, costs=costs) == pytest.approx(2e-3)
    assert seconds(kernel, HostWaits(0, 0, EVERYTHING), kernel, costs=costs) == pytest.approx(4e-3 - 1e-3)
    wait = [RecordEvent(0, 0, 0, 0), HostWaits(0, 0, 0)]
    assert seconds(kernel, *wait, kernel, *[RecordEvent(0, 0, 0, 1), HostWaits(0, 0, 1)], costs=costs) == pytest.approx(
        4e-3
    )


def test_a_collective_runs_beside_kernels_until_it_is_waited_for():
    gather = Collective(1, 0, 0, GATHER, 4, 400_000_000)  # 300 MB over the link: 3 ms
    kernel = KernelLaunch(1, 0, 0, HALF, 2 * MILLI_FLOPS, (0,))
    wait = StreamWaitsForCollective(0, 0, 0, 0)
    assert seconds(gather, kernel, wait, kernel) == pytest.approx(5e-3)
    assert seconds(gather, wait, kernel, kernel) == pytest.approx(7e-3)


def test_a_stream_waits_for_another():
    side = KernelLaunch(1, 0, 7, HALF, 3 * MILLI_FLOPS, (0,))
    main = KernelLaunch(1, 0, 0, HALF, MILLI_FLOPS, (0,))
    side_then_main = [side, RecordEvent(0, 0, 7, 0), StreamWaitsForEvent(0, 0, 0, 0), main]
    assert seconds(*side_then_main) == pytest.approx(3e-3)  # that of the next step begins beside this one's main
    main_then_side = [RecordEvent(0, 0, 0, 1), StreamWaitsForEvent(0, 0, 7, 1)]
    assert seconds(*side_then_main, *main_then_side) == pytest.approx(4e-3)


COPIES = {PINNED: 20e-3, PAGEABLE: 40e-3, CONVERTED_TO_HOST: 80e-3, CONVERTED_FROM_HOST: 60e-3}


@pytest.mark.parametrize(("way", "expected"), COPIES.items())
def test_a_copy_that_the_host_waits_for(way, expected):
    copy = Copy(1, 0, 0, True, way, 10**8)  # 10 ms at 10 GB/s
    costs = replace(LOWER_BOUND, host_link=2.0, pageable_link=4.0, to_host_converted=8.0, from_host_converted=6.0)
    assert seconds(copy, costs=costs, config=ONE_GPU) == pytest.approx(expected)


def test_copies_are_slower_where_several_gpus_copy():
    copy = Copy(1, 0, 0, True, PINNED, 10**8)
    costs = replace(LOWER_BOUND, host_link=2.0)
    assert seconds(copy, costs=costs) == pytest.approx(20e-3 / HOST_LINK_SHARES[4])
    assert seconds(copy) == pytest.approx(10e-3)  # the lower bound knows of no loss


@pytest.mark.parametrize(("gpus", "like"), [(1, 1), (2, 2), (3, 4), (4, 4), (8, 4)])
def test_the_share_of_the_host_is_that_of_a_measured_number_of_gpus(gpus, like):
    assert host_link_share(gpus) == HOST_LINK_SHARES[like]


@pytest.mark.parametrize(("gpus", "expected"), [(1, 10e-3), (4, 40e-3)])
def test_the_ranks_of_a_node_share_its_host(gpus, expected):
    config = replace(CONFIG, hardware=replace(HARDWARE, gpus=gpus))
    costs = replace(LOWER_BOUND, host_byte_s=1e-11)
    assert seconds(HostWork(0, 0, (10**9,)), costs=costs, config=config) == pytest.approx(expected)


def test_hooks_cost_at_stage_3_alone():
    entered = HostWork(0, 10, ())
    costs = replace(LOWER_BOUND, module_s=1e-3, hook_s=2e-3)
    for stage, expected in ((2, 10e-3), (3, 30e-3)):
        config = replace(CONFIG, zero_stage=ZeroStage(stage=stage))
        assert seconds(entered, costs=costs, config=config) == pytest.approx(expected)


def test_the_slowest_rank_decides():
    traces = {rank: Trace(rank, 4, work=[KernelLaunch(1, 0, 0, HALF, rank * MILLI_FLOPS, (0,))]) for rank in (1, 3)}
    assert step_seconds(CONFIG, traces, LOWER_BOUND) == pytest.approx(3e-3)


@pytest.mark.parametrize(
    "name, expected", [("all_gather", 75), ("reduce_scatter", 75), ("all_reduce", 150), ("broadcast", 100)]
)
def test_what_a_ring_sends(name, expected):
    assert link_bytes(COLLECTIVES.index(name), 4, 100) == expected


@pytest.mark.parametrize("name", COLLECTIVES)
def test_one_rank_sends_nothing(name):
    assert link_bytes(COLLECTIVES.index(name), 1, 100) == 0


def test_counts_are_by_phase():
    work = [
        KernelLaunch(2, 1, 0, HALF, 7, (3, 4)),
        BeginWorkPhase(1, 0, 0),
        KernelLaunch(5, 3, 0, HALF, 11, (6,)),
        Collective(1, 0, 0, GATHER, 4, 100),
        Copy(1, 0, 0, False, PINNED, 9),
    ]
    found = work_by_phase(Trace(0, 4, work=work, phases=["forward"]))
    assert (found["between"]["flops"], found["between"]["memory_bytes"], found["between"]["operators"]) == (7, 7, 3)
    forward = found["forward"]
    assert (forward["flops"], forward["memory_bytes"], forward["link_bytes"], forward["host_link_bytes"]) == (
        *(11, 6, 75, 9),
    )
    assert (forward["kernels"], forward["collectives"], forward["operators"], forward["modules"]) == (1, 1, 7, 3)


def test_a_step_that_could_not_be_counted_has_no_time():
    counted, unknown = Trace(0, 4), Trace(1, 4, unknown={WORK: "no formula"})
    assert has_clocks(CONFIG, [counted])
    assert not has_clocks(CONFIG, [counted, unknown])


def test_figures_that_are_missing():
    assert missing_specifications(CONFIG) == []
    without = replace(CONFIG, hardware=replace(HARDWARE, link_gb_per_s=None, bf16_tflops=None))
    assert missing_specifications(without) == ["bf16_tflops", "link_gb_per_s"]
    assert missing_specifications(replace(without, hardware=replace(without.hardware, gpus=1))) == ["bf16_tflops"]
