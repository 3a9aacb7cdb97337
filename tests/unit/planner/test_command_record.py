"""The record of a predicted command, from the traces and the meters of its first and its last rank."""

from dataclasses import replace

import pytest

from memlab.cli.compose import compose_config
from memlab.planner.command_record import TracedCommand, estimate_of, record_of_traces
from memlab.prediction.memory.shared_gpus import gpus_of_ranks, with_memory_of_others
from memlab.report.verdict_text import sharing
from memlab.simulator.trace.events import Alloc, BeginPhase, Event, Free
from memlab.simulator.trace.trace_format import Piece, Site, Trace

GIB = 2**30
PHASES = ["model_build", "first_forward", "forward"]


def trace(rank: int, activations_gib: float) -> Trace:
    """Two steps that take ``activations_gib`` each, the second one twice."""
    events: list[Event] = [BeginPhase(0), Alloc(1, GIB, 0, 0), BeginPhase(1), *_taken(2, activations_gib)]
    steps = [2, len(events)]
    events += [BeginPhase(2), *_taken(3, 2 * activations_gib)]
    pieces = [Piece(None, "train.py:1", True), Piece(1, "train.py:9", True), Piece(2, "train.py:9", True)]
    sites = [Site("weights", "", "", "", "", (), "model.py:5")]
    return Trace(
        rank, 4, events=events, phases=PHASES, sites=sites, pieces=pieces, steps=steps, unknown={"work": "none"}
    )


def _taken(key: int, gib: float) -> list[Event]:
    return [Alloc(key, int(gib * GIB), 0, 0), Free(key)]


def meters(rank: int) -> dict:
    facts = {"rank": rank, "local_rank": rank, "world_size": 4, "local_world_size": 4, "phases": {}, "steps": 2}
    figures = dict.fromkeys(("parameters", "trainable_parameters", "skipped_steps", "device_total_bytes"))
    return {
        **figures,
        **{"rank": rank, "device": f"cuda:{rank}", "device_name": "NVIDIA H200", "status": "ok", "step_seconds": []},
        **{"timing": {}, "unknown": {}, "runtime": {}, "attached": facts},
    }


def rows() -> list[dict]:
    figures = dict.fromkeys(("seconds", "real_tokens", "longest_sample", "padded_length", "largest_micro_batch"))
    known = {"micro_batches": 1, "samples": 2, "tokens": 100, "skipped": False}
    return [{"step": step, **figures, **known} for step in (1, 2)]


@pytest.fixture
def command() -> TracedCommand:
    config, _ = compose_config(["mode=predict", "hardware=h200_x8"])
    traces = {0: trace(0, 2.0), 3: trace(3, 3.0)}
    of_ranks = {rank: meters(rank) for rank in traces}
    words = ["torchrun", "--nproc-per-node", "4", "train.py"]
    return TracedCommand(words, None, config.hardware, traces, of_ranks, {rank: rows() for rank in traces}, 1.0, {})


def test_ranks_that_were_not_traced_are_copies_of_the_last(command):
    record, _ = record_of_traces(command)
    assert [rank["peak_allocated_bytes"] / GIB for rank in record.ranks] == [5.0, 7.0, 7.0, 7.0]
    assert [rank["same_as_rank"] for rank in record.ranks] == [None, 3, 3, None]
    assert [(rank["device"], rank["attached"]["rank"]) for rank in record.ranks] == [(f"cuda:{n}", n) for n in range(4)]
    assert (record.config.hardware.gpus, record.summary["verdict"]) == (4, "fits")
    assert [(row["samples"], row["peak_allocated_bytes"] / GIB) for row in record.steps["rows"]] == [(8, 4.0), (8, 7.0)]


def test_after_an_out_of_memory_no_later_step_counts(command):
    small = replace(command, hardware=replace(command.hardware, memory_gib=7.5))
    record, rows_of_ranks = record_of_traces(small)
    assert record.status == "gpu_oom" and record.reason.startswith(
        "rank 1: in forward, step 2, model.py:5: 6.00 GiB more"
    )
    assert [len(rows_of_ranks[rank]) for rank in range(4)] == [2, 1, 1, 1]
    failed = record.ranks[3]
    assert (
        failed["oom"]["requested_bytes"] == 6 * GIB
        and "forward" not in failed["attached"]["peak"]["phase"].split("_")[:1]
    )
    assert (failed["attached"]["steps"], failed["attached"]["failed_in"]) == (1, "forward")


def test_the_allocator_has_the_settings_of_the_script_or_others_in_their_place(command):
    command.traces[0].allocator_conf = "max_split_size_mb:64"
    assert record_of_traces(command)[0].config.allocator.conf == "max_split_size_mb:64"
    assert (
        record_of_traces(replace(command, allocator_conf="expandable_segments:True"))[0].config.allocator.conf
        == "expandable_segments:True"
    )


def test_ranks_on_the_same_gpu_share_its_memory(command):
    alone, _ = record_of_traces(command)
    for rank in command.traces.values():
        rank.gpu = 0
    traces = with_memory_of_others(command.traces, command.gpus_of_ranks, command.ranks_of_node)
    record, _ = record_of_traces(replace(command, traces=traces))
    all_of_them = sum(rank["device_used_bytes"] for rank in alone.ranks)
    assert [rank["device_used_bytes"] for rank in record.ranks] == [all_of_them] * 4
    assert [rank["process_used_bytes"] for rank in record.ranks] == [one["device_used_bytes"] for one in alone.ranks]
    assert sharing(record) == [("cuda:0", [0, 1, 2, 3])] and sharing(alone) == []
    small, _ = record_of_traces(replace(command, traces=traces, hardware=replace(command.hardware, memory_gib=20)))
    assert small.summary["verdict"] == "does_not_fit" and small.summary["needed_bytes"] == all_of_them


@pytest.mark.parametrize(
    ("used", "gpus", "expected"),
    [
        ((0, 3), 8, [0, 1, 2, 3, 0, 1, 2, 3]),  # each its own, on two nodes
        ((None, None), 8, [0, 1, 2, 3, 0, 1, 2, 3]),  # by names of GPUs in CUDA_VISIBLE_DEVICES
        ((4, 7), 8, [0, 1, 2, 3, 0, 1, 2, 3]),
        ((0, 1), 2, [0, 1, 0, 1, 0, 1, 0, 1]),  # more ranks than GPUs
        ((0, 0), 8, [0] * 8),
        ((0, 1), 8, [0, 1, 0, 1, 0, 1, 0, 1]),  # two ranks on each: set_device(rank // 2)
    ],
)
def test_the_gpu_of_each_rank(used, gpus, expected):
    traces = {rank: Trace(rank, 8, gpu=gpu) for rank, gpu in zip((0, 7), used, strict=True)}
    assert gpus_of_ranks(traces, 8, 4, gpus) == expected


def test_an_estimate_is_of_the_memory_on_a_gpu_of_any_size(command):
    small = replace(command, hardware=replace(command.hardware, memory_gib=7.5))
    needed, known = estimate_of(small), estimate_of(command)
    assert (needed.verdict, known.verdict) == ("does_not_fit", "fits")
    assert needed.used == known.used > 7 * GIB and needed.free < 0
