"""Many estimates at once, with a pool that runs them here and a shadow run that only takes note."""

from types import SimpleNamespace

import pytest

from memlab.plan import make_plan
from memlab.predict import cache, together
from memlab.predict.together import Together


class Here:
    def map(self, function, plans, chunksize):
        return [function(plan) for plan in plans]

    def shutdown(self, cancel_futures):
        pass


@pytest.fixture
def traced(monkeypatch):
    """The sizes that were traced; the second time it is asked for one, it is there."""
    asked, there = [], set()

    def make_missing(plans, told):
        sizes = [plan.config["batch"]["micro"] for plan in plans]
        there.update(size for size in sizes if size in {size for sizes in asked for size in sizes})
        asked.append(sizes)
        return [(cache.trace_folder(plan), "no such model") for plan in plans if plan.config["batch"]["micro"] == 13]

    def estimate(plan, limited):
        size = plan.config["batch"]["micro"]
        return f"{size} fits" if size in there else None

    monkeypatch.setattr(together, "ProcessPoolExecutor", lambda *arguments, **options: Here())
    monkeypatch.setattr(together, "_estimate", estimate)
    monkeypatch.setattr(cache, "make_missing", make_missing)
    return asked


@pytest.fixture
def plans(config):
    return lambda *sizes: [make_plan(config({"batch.micro": size}), {}) for size in sizes]


def test_what_could_not_be_computed_is_traced_next(traced, plans):
    with Together(lambda *done: None) as predictor:
        assert predictor.estimates(plans(1, 2)) == ["1 fits", "2 fits"]
    assert traced == [[1, 2], [1, 2]]


def test_what_cannot_be_traced_is_told(traced, plans):
    with Together(lambda *done: None) as predictor:
        assert predictor.estimates(plans(13)) == ["no such model"]
    assert traced == [[13]]


def test_an_exception_ends_one_estimate_alone(plans, monkeypatch):
    def known_traces(plan):
        if plan.config["batch"]["micro"] == 2:
            raise ZeroDivisionError("no such layer")
        return {}

    monkeypatch.setattr(together, "ProcessPoolExecutor", lambda *arguments, **options: Here())
    monkeypatch.setattr(cache, "known_traces", known_traces)
    monkeypatch.setattr(together, "estimate", lambda config, traces, limited: "fits")
    monkeypatch.setattr(together, "predict", lambda plan: known_traces(plan) or SimpleNamespace(summary={"known": 1}))
    with Together(lambda *done: None) as predictor:
        first, second, third = predictor.estimates(plans(1, 2, 3))
        assert (first, third) == ("fits", "fits") and "ZeroDivisionError: no such layer" in second
        assert predictor.summaries(plans(1, 2)) == [{"known": 1}, {}]
