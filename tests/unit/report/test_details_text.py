"""What ``--all`` prints below the answer of a run."""

import io

import pytest

from memlab.core.record import LIVE_TENSORS, Phase
from memlab.report.details_text import show_answer
from memlab.report.text import console
from memlab.report.verdict_text import how_sure, ranges
from memlab.runs.folder import RunFolder

GIB = 2**30


@pytest.fixture
def shown(record, monkeypatch, tmp_path):
    def show(width: int = 200, **changes) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        out = console(io.StringIO())
        found = record(**changes)
        show_answer(found, RunFolder(tmp_path), out, everything=True)
        text = out.file.getvalue()
        return text[text.index(found.run_id) :] if width == 200 and found.run_id in text else text

    return show


def row(text: str, first: str) -> list[str]:
    """The cells of the table row that begins with this."""
    [found] = [line for line in text.splitlines() if line.startswith(f"{first} ")]
    return found.removeprefix(first).split()


def test_ranks_with_the_same_figures_share_a_row(shown, rank):
    text = shown(ranks=[rank(0), rank(1), rank(2, peak_reserved_bytes=GIB), rank(3)])
    assert row(text, "0-1, 3") == ["NVIDIA", "H200", "2.000", "2.000", "3.000", "4.000", "1.000"]
    assert row(text, "2") == ["NVIDIA", "H200", "2.000", "2.000", "1.000", "4.000", "1.000"]
    assert "(cuda caching allocator)" in text


def test_a_table_fits_a_terminal_of_80_columns_with_every_name_and_figure_whole(shown, rank):
    name = "NVIDIA H100 80GB HBM3"
    ranks = [rank(number, device_name=name, host_peak_bytes=(number + 1) * GIB) for number in range(8)]
    text = shown(80, ranks=ranks)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("2.000") >= 8 and text.count("4.000") >= 8


def test_phases_are_those_of_the_highest_rank_in_the_order_of_a_run(shown, rank):
    low = Phase(GIB, GIB, 0).__dict__
    high = {**low, "peak_allocated_bytes": 3 * GIB}
    text = shown(ranks=[rank(0, phases={"forward": low, "model_build": low}), rank(1, phases={"forward": high})])
    assert row(text, "forward") == ["3.000", "1.000", "0.000"]
    assert text.index("\nmodel build") < text.index("\nforward")
    assert "\nbackward" not in text


def test_a_phase_of_a_command_has_its_place(shown, rank):
    facts = {"peak_allocated_bytes": GIB, "count": 3, "where": "a/b/train.py:7"}
    text = shown(ranks=[rank(0, phases={}, attached={"phases": {"load": facts}})])
    assert row(text, "load") == ["1.000", "3", "b/train.py:7"]


def test_figures_of_the_run_with_their_basis_and_where_the_time_went(shown):
    text = shown()
    assert row(text, "tokens per second") == ["2,048/s"]
    assert row(text, "launch time") == ["1.00", "s"] and row(text, "total time") == ["12.0", "s"]
    predicted = {"step_seconds": 0.5, "step_seconds_min": 0.5, "tokens_per_second": 2048.0, "step_seconds_max": 0.6}
    calibrated = {"error": {"median": 0.08, "p90": 0.2}, "basis_reason": "few runs"}
    text = shown(source="predicted", summary=predicted, steps=calibrated)
    assert row(text, "tokens per second") == ["2,048/s", "±", "20", "%"] and "few runs" in text
    bound = {"error": None, "basis_reason": "no calibration for it"}
    text = shown(source="predicted", summary={**predicted, "step_seconds_max": None}, steps=bound)
    assert row(text, "tokens per second") == ["at", "most", "2,048/s"]
    assert "step time min" in shown() and "step time min" not in text


def test_what_a_cpu_run_measured_is_said(shown, rank):
    on_cpu = {"memory_source": LIVE_TENSORS, "device_used_bytes": None, "num_alloc_retries": None}
    text = shown(ranks=[rank(0, **on_cpu), rank(1, **on_cpu)])
    assert "(live tensors)" in text
    assert row(text, "0-1") == ["NVIDIA", "H200", "2.000", "2.000", "3.000", "1.000"]


def test_what_is_not_known_is_named_once_with_its_reason(shown, rank):
    unknown = {"model_flops_per_step": "ValueError: no formula for layers of the kind mamba"}
    text = shown(ranks=[rank(0, unknown=unknown), rank(1, unknown=unknown)])
    assert text.count("Not known: model flops per step (ValueError: no formula for layers of the kind mamba)") == 1
    assert "Not known:" not in shown()


@pytest.mark.parametrize("text", ["[/foo]", "\x1b]52;c;aGFja2Vk\x07", "\x1b[2J", "\u202egnp"])
def test_what_a_record_says_is_printed_and_not_obeyed(shown, rank, text):
    out = shown(run_id=text, reason=text, ranks=[rank(0, device_name=text, reason=text)], steps={"doubts": [text]})
    assert all(letter.isprintable() for letter in out.replace("\n", ""))


COMMAND = {"words": ["python", "train.py"], "exit_code": 0, "steps": None, "disagreements": []}


@pytest.mark.parametrize(
    ("peak", "sentence"),
    [
        (
            {"step": 3, "phase": "backward", "where": "a/b/train.py:7", "samples": 1, "tokens": 8172},
            "is in backward, step 3, train.py:7, on rank 0 (1 sample, 8,172 tokens).",
        ),
        ({"step": None, "phase": "evaluate"}, "is in evaluate, on rank 0."),
        ({"step": 2, "phase": None}, "is in step 2, on rank 0."),
        ({"step": None, "phase": None}, "is in a part of the script without a phase, on rank 0."),
    ],
)
def test_the_peak_names_step_and_batch(shown, rank, peak, sentence):
    text = shown(command=COMMAND, ranks=[rank(0, attached={"peak": {"bytes": 2 * GIB, **peak}})])
    assert f"The peak, 2.00 GiB, {sentence}" in text


def test_emptied_caches_are_counted_with_their_first_step(shown, rank):
    rows = [{"step": step, "alloc_retries": retries} for step, retries in ((1, 0), (2, 3), (3, 1))]
    text = shown(steps={"rows": rows}, ranks=[rank(0, num_alloc_retries=4)])
    assert "The allocator emptied its cache 4 times after a request had failed, first in step 2" in text
    assert "emptied its cache" not in shown()


def test_what_nobody_can_act_on_is_here(shown, rank):
    effects = {
        "protection": "namespaces",
        "network": False,
        "written": [],
        "deleted": [],
        "refused": [{"what": "127.0.0.1:29500", "times": 2}],
        "answered": [],
    }
    facts = {"models": [{"trained": True, "parameters": 1, "dtypes": {"bfloat16": 1}}], "deepspeed": []}
    text = shown(
        command={**COMMAND, "effects": effects},
        unknown_config=["zero_stage", "measure.steps", "adapter"],
        ranks=[rank(0, attached=facts)],
    )
    assert "Refused: 127.0.0.1:29500 (2 times)." in text
    assert "Found, but without a word in conf/: zero_stage: no DeepSpeed." in text
    assert "Not found out: adapter." in text


ODDS = {"fit_probability": 0.99, "fit_probability_from": 127}
H200 = {"fit_probability_same_gpu": 127, "fit_probability_same_kind": 51}


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
def test_a_probability_is_given_where_measurements_support_it(summary, words):
    assert how_sure(summary) == words


@pytest.mark.parametrize(("numbers", "text"), [([0], "0"), ([0, 1, 2, 3], "0-3"), ([7, 0, 3, 1], "0-1, 3, 7")])
def test_neighbours_are_one_range(numbers, text):
    assert ranges(numbers) == text


def test_figures_that_a_prediction_does_not_know_are_left_out(shown):
    summary = {"step_seconds": 0.5, "step_seconds_spread": 0.0, **ODDS}
    text = shown(source="predicted", summary=summary)
    assert "spread" not in text and "fit probability" not in text
    assert "fit probability" in shown(source="predicted", summary={**summary, **H200})


def test_a_predicted_step_is_printed_once_with_how_it_is_known(shown, record):
    steps = {**record().steps, "basis": "lower bound"}
    timing = {"step_s": 0.25, "step_s_lower_bound": 0.25, "trace_s": 3.0}
    text = shown(source="predicted", steps=steps, timing=timing, summary={"step_seconds": 0.25})
    assert text.count("0.250 s") == 1 and "at least 0.250 s" in text and row(text, "trace time") == ["3.00", "s"]
