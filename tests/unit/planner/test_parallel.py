"""Many estimates at once, with a pool that runs them here and a shadow run that only takes note."""

import os
import signal
from contextlib import suppress
from types import SimpleNamespace

import pytest

from memlab.core.basis import EXACT
from memlab.core.plan import make_plan
from memlab.planner import parallel
from memlab.planner.parallel import ParallelPredictor
from memlab.prediction.traces.store import trace_folder


class Here:
    def map(self, function, plans, chunksize):
        return [function(plan) for plan in plans]

    def shutdown(self, cancel_futures):
        pass


@pytest.fixture
def traced(monkeypatch):
    """The sizes that were traced; the second time it is asked for one, it is there."""
    asked, there = [], set()

    def trace_missing(plans, on_progress):
        sizes = [plan.config.batch.micro for plan in plans]
        there.update(size for size in sizes if size in {size for sizes in asked for size in sizes})
        asked.append(sizes)
        return {trace_folder(plan): "no such model" for plan in plans if plan.config.batch.micro == 13}

    def estimate(plan, limited):
        size = plan.config.batch.micro
        return f"{size} fits" if size in there else None

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", lambda *arguments, **options: Here())
    monkeypatch.setattr(parallel, "_estimate", estimate)
    monkeypatch.setattr(parallel, "trace_missing", trace_missing)
    return asked


@pytest.fixture
def plans(config):
    return lambda *sizes: [make_plan(config({"batch.micro": size}), {}) for size in sizes]


def test_what_could_not_be_computed_is_traced_next(traced, plans):
    with ParallelPredictor(lambda *done: None) as predictor:
        assert predictor.estimates(plans(1, 2)) == ["1 fits", "2 fits"]
    assert traced == [[1, 2], [1, 2]]


def test_what_cannot_be_traced_is_told(traced, plans):
    with ParallelPredictor(lambda *done: None) as predictor:
        assert predictor.estimates(plans(13)) == ["no such model"]
    assert traced == [[13]]


def test_an_exception_ends_one_estimate_alone(plans, monkeypatch):
    def known_traces(plan):
        if plan.config.batch.micro == 2:
            raise ZeroDivisionError("no such layer")
        return {}

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", lambda *arguments, **options: Here())
    monkeypatch.setattr(parallel, "known_traces", known_traces)
    monkeypatch.setattr(parallel, "estimate", lambda config, traces, calibration: "fits")
    monkeypatch.setattr(
        parallel, "predict", lambda plan: known_traces(plan) or SimpleNamespace(summary={"known": 1}, basis="measured")
    )
    with ParallelPredictor(lambda *done: None) as predictor:
        first, second, third = predictor.estimates(plans(1, 2, 3))
        assert (first, third) == ("fits", "fits") and "ZeroDivisionError: no such layer" in second
        assert predictor.summaries(plans(1, 2)) == [({"known": 1}, "measured"), parallel.NO_SUMMARY]
        monkeypatch.setattr(parallel, "traces", known_traces)
        monkeypatch.setattr(parallel, "estimate", lambda config, traces, calibration: SimpleNamespace(verdict="fits"))
        assert predictor.outlooks(plans(1, 2)) == [({"verdict": "fits"}, EXACT), parallel.NO_SUMMARY]


def _estimate_or_die(plan, limited):
    """Runs in a process of the pool. Size 13 gets it killed, size 1 the first time only."""
    size = plan.config.batch.micro
    with suppress(FileExistsError):
        if size == 1:
            os.mkdir(os.environ["SEEN"])
        if size in (1, 13):
            os.kill(os.getpid(), signal.SIGKILL)
    return f"{size} fits"


@pytest.mark.parametrize("sizes", [(1, 2, 3), (2, 3, 4, 13, 6)])
def test_a_killed_process_ends_no_estimate_but_its_own(plans, monkeypatch, tmp_path, sizes):
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setattr(parallel, "_estimate", _estimate_or_die)
    told = []
    with ParallelPredictor(lambda *done: told.append(done)) as predictor:
        assert predictor.estimates(plans(*sizes)) == [
            parallel.KILLED if size == 13 else f"{size} fits" for size in sizes
        ]
    assert told == [("replaying", done, len(sizes)) for done in range(1, len(sizes) + 1)]
