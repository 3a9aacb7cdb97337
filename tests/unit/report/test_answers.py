"""The sentence that each kind of run begins with."""

import pytest

from memlab.core.record import LIVE_TENSORS
from memlab.report.answers import answer, how_sure, ranges

GIB = 2**30
BACKWARD = {"backward": {"peak_allocated_bytes": 2 * GIB}, "forward": {"peak_allocated_bytes": GIB}}
ODDS = {"fit_probability": 0.99, "fit_probability_from": 127}
H200 = {"fit_probability_same_gpu": 127, "fit_probability_same_kind": 51}


@pytest.fixture
def predicted(record, rank):
    """``predicted(verdict="edge")``: a prediction for two GPUs of 80 GiB; changes go to its summary."""

    def build(steps=None, status="ok", ranks=None, **summary):
        both = [
            rank(number, phases=BACKWARD, device_total_bytes=80 * GIB, device_used_bytes=46.5 * GIB)
            for number in (0, 1)
        ]
        figures = {"verdict": "fits", "step_seconds": 0.42, **ODDS, **summary}
        return record(source="predicted", status=status, ranks=ranks or both, summary=figures, steps=steps or {})

    return build


def test_a_prediction_that_fits(predicted):
    assert answer(predicted(**H200)) == (
        "Fits: 46.5 of 80.0 GiB on each GPU (reserved 3.00), 99 % sure (51 similar configurations were measured); "
        "0.420 s a step at best; the peak is in the backward pass."
    )


def test_a_calibrated_step_has_its_error(predicted):
    assert "; 0.420 s a step, within 23 % in 9 of 10 predictions;" in answer(predicted({"error": {"p90": 0.23}}))


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({}, ""),
        (ODDS, "probability unknown (not calibrated for this GPU)"),
        (
            {**ODDS, "fit_probability_same_gpu": 127, "fit_probability_same_kind": 4},
            "probability unknown (not calibrated for this configuration)",
        ),
        ({**ODDS, **H200}, "99 % sure (51 similar configurations were measured)"),
    ],
)
def test_a_probability_is_told_where_measurements_support_it(summary, words):
    assert how_sure(summary) == words


def test_a_prediction_that_does_not_fit_says_where_and_by_how_much(predicted, rank):
    oom = {"phase": "backward", "step": 1, "requested_bytes": 2 * GIB}
    ranks = [
        rank(number, status="gpu_oom", oom=oom, device_total_bytes=80 * GIB, device_used_bytes=79 * GIB)
        for number in (0, 1, 3)
    ]
    record = predicted(status="gpu_oom", ranks=ranks, verdict="does_not_fit", **{**H200, "fit_probability": 0.01})
    assert answer(record) == (
        "Does not fit: out of memory on ranks 0-1, 3 in the backward pass: 2.00 GiB requested beside 79.0 of 80.0 GiB; "
        "99 % sure (51 similar configurations were measured)."
    )


def test_what_depends_on_side_streams_is_at_the_edge(predicted):
    edge = {**H200, "verdict": "edge", "fit_probability": 0.4}
    assert answer(predicted(**edge)).startswith(
        "At the edge: 46.5 of 80.0 GiB on each GPU (reserved 3.00), 40 % sure to fit"
    )
    assert answer(predicted(status="gpu_oom", **edge)).startswith("At the edge: likely out of memory: ")


def test_an_out_of_memory_that_told_nothing_more_is_a_sentence_all_the_same(record, rank):
    silent = dict.fromkeys(("device_used_bytes", "peak_reserved_bytes", "peak_active_bytes", "peak_allocated_bytes"))
    assert answer(record(status="gpu_oom", ranks=[rank(2, status="gpu_oom", **silent)])) == "Out of memory on rank 2."


def test_a_training_says_what_it_took(record, rank, config):
    ranks = [rank(0, device_total_bytes=80 * GIB, phases=BACKWARD), rank(1, device_used_bytes=3 * GIB)]
    steps = config().measure.steps
    for each in ranks:
        each["step_seconds"] = [0.5] * steps
    assert answer(record(ranks=ranks)) == (
        "Trained: 4.00 of 80.0 GiB on the fullest GPU (reserved 3.00); 0.500 s a step, 2,048 tokens/s; "
        "the peak is in the backward pass."
    )
    assert answer(record(ranks=ranks[:1])).startswith("Trained, but incompletely (no values of rank 1 (of 2)): ")


def test_a_capped_allocator_is_held_against_its_share(record, rank):
    capped = record(ranks=[rank(0, device_total_bytes=80 * GIB)])
    capped.config.allocator.conf = "per_process_memory_fraction:0.1"
    assert "3.00 of 8.00 GiB that the allocator may take on the GPU (allocated 2.00)" in answer(capped)


def test_on_a_cpu_it_is_tensors_and_resident_memory(record, rank):
    on_cpu = {"memory_source": LIVE_TENSORS, "device_used_bytes": None}
    assert "2.00 GiB of tensors and 3.00 GiB resident on each rank" in answer(
        record(ranks=[rank(0, **on_cpu), rank(1, **on_cpu)])
    )


@pytest.mark.parametrize(
    ("status", "reason", "sentence"),
    [
        ("gpu_oom", "implied by other-run", "Out of memory: implied by other-run."),
        ("unsupported", "no; instead: yes", "Unsupported: no; instead: yes."),
        ("failed", "rank 0: KeyError\nmore", "Failed: rank 0: KeyError; the logs are in logs/ of the run folder."),
        ("interrupted", None, "Interrupted: no reason given; run the same command again."),
        ("timeout", "late", "Not finished in time: late; if no rank hung, raise measure.timeout_s."),
        ("infra", "bad\x1b port.", "Not measured: bad\N{REPLACEMENT CHARACTER} port; run the same command again."),
        ("host_oom", "k", "Out of host memory: k; offload less, or take a machine with more memory."),
    ],
)
def test_a_run_without_figures_says_why_and_what_to_do(record, status, reason, sentence):
    assert answer(record(status=status, reason=reason, ranks=[], summary={})) == sentence


def test_a_prediction_that_cannot_be_made(record):
    found = record(source="predicted", status="failed", reason="the shadow run failed: x", ranks=[], summary={})
    assert answer(found) == "Not predicted: the shadow run failed: x."


@pytest.mark.parametrize(("numbers", "text"), [([0], "0"), ([0, 1, 2, 3], "0-3"), ([7, 0, 3, 1], "0-1, 3, 7")])
def test_neighbours_are_one_range(numbers, text):
    assert ranges(numbers) == text
