"""What another sweeper of Hydra is told of a point: one number, or why there is none."""

from math import inf

import pytest

from memlab.analyse.objective import objective_of
from memlab.analyse.run_view import view_of
from memlab.core.config import OBJECTIVES
from memlab.core.errors import MemlabError
from memlab.core.sizes import GIB

FIGURES = {
    "usd_per_million_tokens": 0.25,
    "step_seconds": 0.5,
    "step_seconds_max": 0.6,
    "peak_reserved_bytes": {"max": 60 * GIB, "mean": 50 * GIB, "min": 40 * GIB},
    "device_used_bytes": {"max": 62 * GIB, "mean": 52 * GIB, "min": 42 * GIB},
}
VALUES = dict(zip(OBJECTIVES, (0.25, 0.5, 60.0 * GIB, 78.0 * GIB), strict=True))


@pytest.fixture
def point(config, record):
    def build(**changes):
        of_140 = config({"hardware.memory_gib": 140})
        return view_of(record(**{"summary": FIGURES, "config": of_140, **changes}), "runs/one")

    return build


def bound(point, **changes):
    return point(source="predicted", steps={"basis_reason": "no calibration for NVIDIA A10G"}, **changes)


@pytest.mark.parametrize(("name", "value"), VALUES.items())
def test_each_objective_is_a_figure_of_the_fullest_rank_and_worse_where_a_point_does_not_fit(point, name, value):
    worst = -inf if name == "free_bytes" else inf
    assert objective_of(point(), name) == value
    for ended in ({"status": "gpu_oom", "summary": {}}, {"status": "host_oom"}, {"status": "unsupported"}):
        assert objective_of(point(**ended), name) == worst
    assert objective_of(point(summary={**FIGURES, "verdict": "does_not_last"}), name) == worst
    assert objective_of(point(summary={**FIGURES, "verdict": "edge"}), name) == value


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_time_that_is_only_a_bound_is_refused_with_what_to_do_and_memory_is_not(point, name):
    if name in ("peak_reserved_bytes", "free_bytes"):
        assert objective_of(bound(point), name) == VALUES[name]
        return
    with pytest.raises(MemlabError, match=r"lower bound .*A10G.*mode=measure.*calibration.*objective=peak_reserved"):
        objective_of(bound(point), name)
    assert objective_of(bound(point, status="gpu_oom", summary={}), name) == inf


def test_a_price_that_is_not_known_is_refused_with_the_key_that_sets_it(point):
    with pytest.raises(MemlabError, match=r"hardware\.usd_per_gpu_hour"):
        objective_of(point(summary={"step_seconds": 0.5}), "usd_per_million_tokens")


def test_a_run_without_a_result_has_no_objective(point):
    with pytest.raises(MemlabError, match="ended as timeout: too slow"):
        objective_of(point(status="timeout", reason="too slow"), "step_seconds")
