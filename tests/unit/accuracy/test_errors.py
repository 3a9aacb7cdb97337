"""Errors of predictions: what is counted, and how."""

import json
import re
from pathlib import Path

import pytest

from tools.accuracy.errors import QUANTITIES, Judged, errors_of, judge, reserved_ratios, summary, verdicts_of

ROOT = Path(__file__).parents[3]


def point(reserved: float | None = None, **changes) -> Judged:
    values = {
        "sweep": "sweep",
        "run_id": "run",
        "engine": "engine",
        "choices": {"model": "tiny"},
        "gpus": 1,
        "isolation": "fresh",
        "micro": 1,
        "tokens": 512,
        "measured": "ok",
        "predicted": "ok",
        "verdict": "fits",
        "measured_bytes": {},
        "errors": {} if reserved is None else {"reserved": reserved},
        "reserved_range": None,
        "versions": {},
    }
    return Judged(**{**values, **changes})


def test_errors_keep_their_sign_where_it_matters():
    found = errors_of([point(0.01), point(-0.05), point(0.0), point(-0.01)], "reserved")
    assert (found.n, found.median, found.percentile_90, found.worst) == (4, 0.01, 0.05, -0.05)
    assert (found.under, found.under_by_margin) == (0.5, 0.25)
    assert errors_of([point()], "reserved") is None


def test_a_verdict_is_right_when_what_happened_was_said():
    ran, not_ran = {"measured": "ok"}, {"measured": "gpu_oom"}
    points = [
        point(**ran, predicted="ok"),
        point(**ran, predicted="gpu_oom"),
        point(**not_ran, predicted="gpu_oom"),
        point(**not_ran, predicted="ok", verdict="edge"),
    ]
    found = verdicts_of(points)
    assert (found.n, found.right, found.out_of_memory, found.edge) == (4, 2, 2, 1)


def test_a_record_is_judged_by_its_highest_rank(record, rank, config):
    low, high = rank(0), rank(1, peak_allocated_bytes=3 * 2**30)
    summary = {"peak_allocated_bytes": {"max": 3 * 2**30}, "peak_reserved_bytes": {"max": 4 * 2**30}}
    measured = record(ranks=[low, high], summary=summary)
    halves = {key: {"max": value["max"] // 2} for key, value in summary.items()}
    guess = [rank(0, peak_reserved_range_bytes=[2**30, 2**31]), rank(1, peak_reserved_range_bytes=[2**31, 2**33])]
    found = judge("sweep", measured, record(source="predicted", ranks=guess, summary=halves))
    assert found.errors == {"allocated": -0.5, "reserved": -0.5}
    assert found.reserved_range == (-0.5, 1.0)


def test_peaks_of_what_ran_out_of_memory_are_not_compared(record):
    assert judge("sweep", record(status="gpu_oom"), record(status="gpu_oom")).errors == {}


def test_ratios_go_by_configuration():
    found = reserved_ratios([point(0.25), point(-0.2), point(0.0, engine="other"), point()])
    assert found == {"engine": [0.8, 1.25], "other": [1.0]}


@pytest.fixture(scope="module")
def published():
    return json.loads((ROOT / "docs" / "accuracy.json").read_text())


def test_what_is_published_adds_up(published):
    points = [
        Judged(**{**values, "reserved_range": tuple(values["reserved_range"]) if values["reserved_range"] else None})
        for values in published["points"]
    ]
    assert summary(points) == published["summary"]


def test_what_is_published_meets_the_bar(published):
    """Allocated, after initialisation and reserved; under-estimates and verdicts."""
    found = published["summary"]
    assert set(found) <= {*QUANTITIES, "verdicts"}
    assert found["allocated"]["median"] <= 0.005
    assert abs(found["allocated"]["worst"]) <= 0.02
    assert abs(found["after_init"]["worst"]) <= 0.001
    assert found["reserved"]["median"] <= 0.03
    for point in published["points"]:
        assert abs(point["errors"].get("reserved", 0.0)) <= 0.07, point["run_id"]
    assert found["reserved"]["under_by_margin"] <= 0.05
    assert found["verdicts"]["right"] / found["verdicts"]["n"] >= 0.98
    assert found["verdicts"]["n"] >= 69


def test_every_published_record_was_judged(published):
    judged = {f"{point['sweep']}/{point['run_id']}" for point in published["points"]} | set(published["not_predicted"])
    files = (ROOT / "results").rglob("record.json")
    records = [file.parent for file in files if json.loads(file.read_text()).get("command") is None]
    assert {f"{folder.parent.name}/{folder.name}" for folder in records} - judged == set(), "run: make accuracy"


def test_the_readme_says_what_is_published(published):
    found = published["summary"]
    counts = [found["verdicts"]["n"], found["verdicts"]["right"], found["reserved"]["n"]]
    shares = [abs(found["allocated"]["worst"]), abs(found["reserved"]["worst"]), found["reserved"]["percentile_90"]]
    points, right, ran, *uppers = re.search(
        r"\| (\d+) points of memlab's own training, (\d+) ran \| (\d+) \| within ([\d.]+) % "
        r"\| within ([\d.]+) %, nine of ten within ([\d.]+) % \|",
        (ROOT / "README.md").read_text(encoding="utf-8"),
    ).group(1, 3, 2, 4, 5, 6)
    assert [int(points), int(right), int(ran)] == counts
    for share, upper in zip(shares, uppers, strict=True):
        assert share <= float(upper) / 100 < share + 0.001
