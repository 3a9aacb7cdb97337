"""The quote of a sweep: what fits, its time and its price, with a predictor that only looks at the size."""

import io
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from played_sweeps import measuring
from rich.console import Console

from memlab.core.basis import BOUND, CALIBRATED, Basis
from memlab.core.config import Sweep
from memlab.planner import command_sweep
from memlab.planner.quote import LAUNCH_S, POINT_S, quote
from memlab.report.sweep_text import show_preview, show_quote
from memlab.runs.folder import RunFolder
from memlab.runs.job import Schedule, SweepObserver
from memlab.system.machine import Machine

ROOT = Path(__file__).parents[3]

H200 = {"device": "cuda", "gpu": "NVIDIA H200", "gpus": 2, "memory_gib": 140, "usd_per_gpu_hour": 18.0}
ONE_STEP_A_SECOND = {"step_seconds_mean": 1.0, "verdict": "fits"}
CALIBRATION = Basis(CALIBRATED, 0.25)


@pytest.fixture
def predicted(monkeypatch):
    """The plans that were predicted. Above 1,000 tokens in a batch a point does not fit; seed 13 fails."""
    plans, known = [], SimpleNamespace(basis=CALIBRATION)

    def summary(plan):
        if plan.config.seed == 13:
            return {}, known.basis
        if plan.config.batch.micro * plan.config.seq_len.tokens > 1000:
            return {"verdict": "does_not_fit", "needed_bytes": 2**38}, Basis(BOUND)
        return ONE_STEP_A_SECOND, known.basis

    def summaries(asked):
        plans.extend(asked)
        return [summary(plan) for plan in asked]

    one = SimpleNamespace(prepare=lambda asked: None, outlooks=summaries)
    monkeypatch.setattr(command_sweep, "predictor_of", lambda config, on_progress: nullcontext(one))
    known.plans = plans
    return known


@pytest.fixture
def gpu_job(job):
    def build(tokens=100, micro=1, **changes):
        values = {f"hardware.{key}": value for key, value in H200.items()}
        steps = {"measure.warmup": 4, "measure.steps": 6, "seq_len.tokens": tokens, "batch.micro": micro}
        return job({**values, **steps, **{key.replace("__", "."): value for key, value in changes.items()}})

    return build


def scheduled(*jobs, **options) -> Schedule:
    return measuring(Machine(), Sweep(guide="quote", **options), SweepObserver()).schedule(jobs)


def quoted(*jobs, **options):
    return quote(scheduled(*jobs, **options).to_measure, Sweep(**options).prune, lambda *told: None)


def text(quote) -> str:
    out = Console(file=io.StringIO(), width=200, highlight=False)
    show_quote(quote, out)
    return out.file.getvalue()


def test_steps_launches_and_points_add_up_and_have_their_errors(predicted, gpu_job):
    found = quoted(gpu_job(100), gpu_job(200))
    low, high = 2 * (7.5 + POINT_S[0]) + LAUNCH_S[0], 2 * (12.5 + POINT_S[1]) + LAUNCH_S[1]
    assert (found.launches, found.seconds, found.usd) == (
        1,
        pytest.approx((low, high)),
        pytest.approx((low / 100, high / 100)),
    )
    assert {plan.config.mode for plan in predicted.plans} == {"predict"}
    shown = text(found)
    assert "Quote: 2 fit.\n32 to 63 s and $0.32 to $0.63, for 1 launch one after another.\n" in shown
    assert "Step time of 2 points: calibrated, ± 25 %.\n" in shown and "16 to 37 s, as measured on H200s." in shown


def test_without_a_calibration_it_is_a_bound_and_says_why(predicted, gpu_job):
    predicted.basis = Basis(BOUND, reason="no calibration for NVIDIA A10G")
    found = quoted(gpu_job())
    assert found.seconds == (10 + POINT_S[0] + LAUNCH_S[0], None) and found.usd[1] is None
    assert "At least 26 s and at least $0.26, for 1 launch one after another.\n" in text(found)
    assert "Step time of 1 point: a lower bound (no calibration for NVIDIA A10G).\n" in text(found)


def test_what_is_not_predicted_is_named_and_makes_the_rest_a_bound(predicted, gpu_job, job):
    found = quoted(gpu_job(), gpu_job(seed=13), job())  # the last one on CPU ranks
    assert found.seconds[1] is None
    shown = text(found)
    assert "Quote: 2 not predicted, 1 fit.\nAt least " in shown and "and an unknown price (" in shown
    assert "Not counted: 1 point (its prediction failed; mode=predict says why).\n" in shown
    assert "Not counted: 1 point (a CPU has no caching allocator to predict; instead: " in shown


@pytest.mark.parametrize(("prune", "launches", "points"), [(True, 2, 3), (False, 4, 5)])
def test_an_out_of_memory_ends_a_launch_and_what_it_implies_costs_nothing(predicted, gpu_job, prune, launches, points):
    jobs = [gpu_job(500), gpu_job(501, 2), gpu_job(502, 2), gpu_job(1003), gpu_job(503, 2)]
    found = quoted(*jobs, prune=prune)
    assert found.launches == launches
    assert found.seconds[1] == pytest.approx(launches * LAUNCH_S[1] + points * POINT_S[1] + 12.5)
    assert "Quote: 4 cannot fit, 1 fit.\n" in text(found)


def test_repeats_share_a_prediction_and_cost_their_time(predicted, gpu_job):
    found = quoted(*(gpu_job(measure__repeat=number) for number in (1, 2, 3)))
    assert len(predicted.plans) == 1 and found.launches == 3


def test_a_command_is_predicted_and_its_start_not_counted(predicted, gpu_job):
    command = {"training__loop": "command", "training__command": "python3 train.py {batch.micro}"}
    found = quoted(gpu_job(**command))
    assert found.seconds[1] is None and "Not counted: how long a command takes to start.\n" in text(found)


def test_this_machine_need_not_be_the_one_that_the_quote_is_for(gpu_job, predicted):
    jobs = [gpu_job(), gpu_job(2000)]
    assert not measuring(Machine(), Sweep(), SweepObserver()).schedule(jobs).launches
    out = Console(file=io.StringIO(), width=200)
    found = scheduled(*jobs)
    show_preview(found, Path("x"), out, quote(found.to_measure, True, lambda *told: None))
    assert re.findall(r"1  to run: (.*\w)", out.file.getvalue()) == ["fits", "cannot fit"]


def test_the_times_beside_the_steps_are_those_of_the_measurements():
    launches, points = [], []
    for path in sorted((ROOT / "results").glob("*xH200/*/record.json")):
        record = RunFolder(path.parent).read_record()
        if record.status == "ok" and not record.command and record.timing:
            measure = record.config.measure
            beside = record.timing["total_s"] - (measure.warmup + measure.steps) * record.summary["step_seconds"]
            (launches if record.timing.get("launch_s") else points).append(beside)
    assert len(launches) > 100 and len(points) > 200
    for seconds, known in ((launches, LAUNCH_S), (points, POINT_S)):
        assert numpy.quantile(seconds, [0.05, 0.95]) == pytest.approx(known, rel=0.06)
