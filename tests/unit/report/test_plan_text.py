"""A plan begins with what fits, and which of it to take."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest

from memlab.core.basis import EXACT, Basis
from memlab.core.config import Config, Hardware, SeqLen
from memlab.planner.search import Candidate, Row, SingleChange
from memlab.prediction.memory.rank_results import Estimate
from memlab.report import plan_text
from memlab.report.plan_text import PlanProgress, changes_answer, plan_answer, show_measure, show_rows
from memlab.report.text import console

GIB = 2**30
OPTIONS = {"zero_stage": "zero3", "offload": "none", "checkpointing": "full", "allocator": "expandable"}


def estimate(used=46.5, verdict="fits", free=32.7) -> Estimate:
    return Estimate(verdict, int(used * GIB), int(free * GIB), 2 * GIB, {})


BOUND = Basis("lower bound", reason="no calibration for A100")


def row(batch=4, options=None, best=None, basis=EXACT, **summary) -> Row:
    config = Config(hardware=Hardware(gpu="H100", gpus=8, usd_per_gpu_hour=2.5), seq_len=SeqLen(tokens=4096))
    best = (best or estimate()) if batch else None
    of_one = estimate(verdict="does_not_fit")
    return Row(Candidate(options or OPTIONS, config, {}), batch, of_one, best, None, summary, basis)


SUPPORTED = {"fit_probability": 0.97, "fit_probability_same_gpu": 127, "fit_probability_same_kind": 16}


def test_the_fastest_that_fits_is_named_with_what_it_needs():
    rows = [row(**SUPPORTED, tokens_per_second=52000.0, step_seconds_max=1.0), row(batch=0)]
    assert plan_answer(rows, None, rows[:1]) == (
        "1 of 2 configurations fit; the fastest is zero_stage=zero3 offload=none checkpointing=full "
        "allocator=expandable batch.micro=4: 46.5 of 79.2 GiB on the fullest GPU with 4,096 tokens a sequence, "
        "97 % sure (16 similar configurations were measured); 52,000 tokens/s ($0.11 a million, $20.00 an hour)."
    )


def test_a_bound_and_what_nobody_measured_are_called_that():
    rows = [row(basis=BOUND, fit_probability=0.97, fit_probability_same_gpu=0, tokens_per_second=1000.0)]
    answer = plan_answer(rows, rows[0], rows)
    assert "the cheapest by the hour is" in answer
    assert answer.endswith(
        "probability unknown (not calibrated for this GPU); at most 1,000 tokens/s (at least $5.56 a million, $20.00 "
        "an hour); which is fastest: not known (no calibration for A100)."
    )


def test_where_speeds_are_bounds_the_largest_batch_is_named():
    rows = [row(batch, basis=BOUND, tokens_per_second=1000.0 / batch) for batch in (4, 6)]
    assert plan_answer(rows, None, rows).startswith("2 of 2 configurations fit; the one with the largest batch is")
    assert "batch.micro=6: " in plan_answer(rows, None, rows)


def test_the_progress_says_how_long_it_still_takes(monkeypatch):
    clock = iter(range(0, 1000, 15))
    monkeypatch.setattr(plan_text, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    out = console(io.StringIO())
    progress = PlanProgress(out)
    for what, done, of in (("tracing", 0, 40), ("tracing", 1, 40), ("tracing", 2, 40), ("replaying", 1, 3)):
        progress.update(what, done, of)
    assert out.file.getvalue().splitlines() == [
        "tracing: 0 of 40",
        "tracing: 1 of 40; about 19 min 30 s left",
        "tracing: 2 of 40; about 14 min 15 s left",
        "replaying: 1 of 3",
    ]


def test_nothing_fits():
    rows = [row(batch=0), row(batch=0)]
    assert plan_answer(rows, None, []) == "Nothing fits: none of the 2 configurations fits with a batch of one."


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_names_are_whole(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = console(io.StringIO())
    other = {**OPTIONS, "zero_stage": "zero2", "offload": "optimizer", "checkpointing": "none", "allocator": "default"}
    show_rows([row(**SUPPORTED, tokens_per_second=52000.0), row(options=other)], out)
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(name in text for name in ("optimizer", "expandable", "checkpointing", "46.50"))
    assert ("97 %" in text) == (width == 120)


def test_the_first_to_measure_has_its_command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = console(io.StringIO())
    one = row(**SUPPORTED)
    show_measure([replace(one, candidate=replace(one.candidate, words=("model=tiny", "model.path=a b")))], 5, out)
    assert "mode=compose prints" in out.file.getvalue()
    assert out.file.getvalue().endswith(f"\npython launch.py model=tiny 'model.path=a b' batch.micro={one.batch}\n")


def test_what_a_single_change_does():
    saved = SingleChange("checkpointing=full", "time", estimate(40.0), 30 * GIB)
    assert changes_answer(estimate(85.0, "does_not_fit", -5.8), [saved]) == (
        "Does not fit: it needs 85.0 of 79.2 GiB on the fullest GPU; "
        "checkpointing=full saves 30.0 GiB, and then the run fits."
    )
    edge = SingleChange("allocator=expandable", "nothing", estimate(79.0, "edge", 0.2), 6 * GIB)
    assert changes_answer(estimate(85.0, "does_not_fit", -5.8), [edge]).endswith(", and then the run is at the edge.")
    assert changes_answer(estimate(), [saved]).endswith(
        "checkpointing=full saves 30.0 GiB, the most of all single changes."
    )
    assert changes_answer("no such model", []) == "Not predicted: no such model."
