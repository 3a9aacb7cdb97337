"""Sentences about a measured command: where the peak is, growth, fragmentation, flushes of the allocator's cache."""

from typing import Any

import pytest

from memlab.core.config import Config
from memlab.core.record import RankResult, Record
from memlab.report.answers import answer
from memlab.report.command_text import command_sentences

GIB = 2**30


def sentences(peak: dict[str, Any] | None = None, rows: list[dict[str, Any]] | None = None, **rank: Any) -> str:
    """The sentences about a run of one rank with these figures, in one text."""
    result = RankResult(rank=0, device="cuda:0", device_name="NVIDIA H200", memory_source="cuda_caching_allocator")
    return " ".join(
        command_sentences(
            Record(
                run_id="run",
                source="measured",
                status="ok",
                choices={},
                fingerprint="",
                config=Config(),
                ranks=[{**result.to_json(), **rank, "attached": {"peak": peak}}],
                steps={"rows": rows or []},
                command={"words": ["python", "train.py"], "exit_code": 0, "disagreements": []},
            )
        )
    )


@pytest.mark.parametrize(
    ("peak", "told"),
    [
        (
            {"step": 3, "phase": "backward", "where": "a/b/train.py:7", "samples": 1, "tokens": 8172},
            "is in step 3, backward, on rank 0, b/train.py:7 (1 sample, 8,172 tokens).",
        ),
        ({"step": None, "phase": "evaluate"}, "is in evaluate, on rank 0."),
        ({"step": 2, "phase": None}, "is in step 2, between its phases, on rank 0."),
        ({"step": None, "phase": None}, "is in a part of the script without a phase, on rank 0."),
    ],
)
def test_the_peak_names_step_and_batch(peak, told):
    assert f"The peak, 2.00 GiB, {told}" in sentences({"bytes": 2 * GIB, **peak})


def test_the_answer_names_the_same_peak_as_the_sentence():
    ranks = [
        {
            **RankResult(rank=rank, device="cpu", device_name="CPU", memory_source="host").to_json(),
            "attached": {"peak": {"step": step, "phase": "backward", "where": "train.py:7", "bytes": nbytes}},
        }
        for rank, step, nbytes in ((0, 2, GIB), (1, 3, 2 * GIB))
    ]
    command = {"words": ["python", "train.py"], "exit_code": 0, "disagreements": []}
    record = Record("run", "measured", "ok", Config(), {}, "", ranks=ranks, command=command)
    assert "of step 3" in answer(record)
    assert "is in step 3, backward, on rank 1" in " ".join(command_sentences(record))


def test_memory_that_grows_is_told():
    rows = [{"step": step, "peak_reserved_bytes": (10 + step) * GIB} for step in (1, 2, 3)]
    assert "Reserved memory of a step grows from 12.0 GiB in step 2 to 13.0 GiB in step 3 of 3." in sentences(rows=rows)


@pytest.mark.parametrize(("active", "told"), [(19, False), (12, True)])
def test_reserved_memory_that_is_never_in_use_at_once_is_fragmentation(active, told):
    text = sentences(peak_reserved_bytes=20 * GIB, peak_active_bytes=active * GIB)
    sentence = (
        "Fragmentation: of the 20.0 GiB that the allocator reserved, at most 12.0 GiB were in use at once (60 %)."
    )
    assert (sentence in text) == told == ("Fragmentation" in text)


def test_flushes_of_the_cache_are_told_with_their_first_step():
    rows = [{"step": step, "alloc_retries": retries} for step, retries in ((1, 0), (2, 3), (3, 1))]
    text = sentences(rows=rows, num_alloc_retries=4)
    assert (
        "Allocator cache flushes (retries after an allocation failed): 4 on the rank with most, first in step 2" in text
    )
    assert "cache flushes" not in sentences(num_alloc_retries=0)
