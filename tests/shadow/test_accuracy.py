"""A handful of results/, predicted anew: no figure may be further off than docs/accuracy.json says."""

import json
from pathlib import Path

import pytest

from memlab.core.record import Record
from memlab.prediction.traces import choose_traces
from memlab.runs.folder import RunFolder
from tools.accuracy.errors import judge
from tools.accuracy.repredict import launches, predictions

pytestmark = [pytest.mark.shadow, pytest.mark.long(45)]

ROOT = Path(__file__).parents[2]

WATCHED = (
    "tinyllama_1b_1xH200/*-zero2-checkpointing-*",  # two points that shared a launch
    "qwen15_05b_1xH200/*-zero3-s512-*",
    "qwen15_05b_1xH200/*-zero3-all-full-*",
    "qwen15_05b_1xH200/*-zero2-s4096-b96-*",  # out of memory
    "llama3_8b_zero3_fresh_4xH200/*-zero3-s2001-*",
    "unseen_families_4xH200/falcon_7b-*",  # attention without a fused kernel
    "moe_newer_transformers_1xH200/*-s2048-*",  # 64 experts, with the transformers that is installed here
    "capped_1xH200/SmolLM2_135M-zero2-*-s1024-b[1-6]-1xH200-*",  # two caps, one of which is too small for six
)

TOLERANCE = 1e-3
"""Versions differ a little in what they allocate; the worst error that is published may be exceeded by so much."""


def measured(pattern: str) -> list[Record]:
    return [RunFolder(folder).read_record() for folder in sorted((ROOT / "results").glob(pattern))]


@pytest.fixture(scope="module", autouse=True)
def all_is_traced():
    """In one shadow process, which imports torch, DeepSpeed and transformers once."""
    found = [launch.plans() for pattern in WATCHED for launch in launches(measured(pattern))]
    assert not choose_traces.trace_missing(plan for plans in found for plan in plans)


@pytest.mark.parametrize("pattern", WATCHED)
def test_errors_are_no_larger_than_published(pattern):
    sweep = pattern.split("/")[0]
    points = json.loads((ROOT / "docs" / "accuracy.json").read_text())["points"]
    published = {point["run_id"]: point for point in points if point["sweep"] == sweep}
    records = measured(pattern)
    judged = [judge(sweep, *pair) for pair in predictions(records)]
    assert len(judged) == len(records) > 0
    for point in judged:
        before = published[point.run_id]
        assert (point.measured, point.predicted) == (before["measured"], before["predicted"])
        assert set(point.errors) == set(before["errors"])
        for figure, error in point.errors.items():
            assert abs(error) <= abs(before["errors"][figure]) + TOLERANCE, (point.run_id, figure)
