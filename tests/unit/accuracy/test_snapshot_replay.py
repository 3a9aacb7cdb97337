"""The replay against what a real allocator did. The recordings are made by benchmarks/record_snapshot.py on a GPU."""

from pathlib import Path

import pytest

from memlab.predict.allocator import Options
from tools.accuracy.snapshot_replay import Step, load, replayed, steps

MIB = 1 << 20
RECORDINGS = sorted((Path(__file__).parents[2] / "data").glob("allocator_*.json"))


@pytest.mark.skipif(not RECORDINGS, reason="no recording: python benchmarks/record_snapshot.py on a GPU")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_real_history_replays_to_its_reserved_curve(path):
    options, history = load(path)
    curve = replayed(options, history)
    wrong = [(index, real, ours) for index, (real, ours) in enumerate(curve) if real != ours]
    assert not wrong, f"{len(wrong)} of {len(curve)} requests differ, the first: {wrong[0]}"


def test_segments_count_before_the_request_that_took_them():
    entry = {"addr": 0, "stream": 0}
    trace = [
        {"action": "segment_alloc", "size": 20 * MIB, **entry},
        {"action": "alloc", "size": 4 * MIB, **entry},
        {"action": "free_requested", "size": 4 * MIB, **entry},
        {"action": "free_completed", "size": 4 * MIB, **entry},
        {"action": "snapshot", "size": 0, **entry},
    ]
    assert [(step.action, step.reserved) for step in steps(trace)] == [
        ("alloc", 20 * MIB),
        ("free_requested", 20 * MIB),
        ("free_completed", 20 * MIB),
    ]


def test_a_block_that_waits_is_not_reused():
    history = [
        Step("alloc", 0, 30 * MIB, 0, 30 * MIB),
        Step("free_requested", 0, 30 * MIB, 0, 30 * MIB),
        Step("alloc", 1, 30 * MIB, 0, 60 * MIB),
        Step("free_completed", 0, 30 * MIB, 0, 60 * MIB),
        Step("alloc", 2, 30 * MIB, 0, 60 * MIB),
    ]
    assert replayed(Options(), history) == [(30 * MIB, 30 * MIB), (60 * MIB, 60 * MIB), (60 * MIB, 60 * MIB)]


def test_segments_given_back_in_a_row_are_one_emptied_cache():
    entry = {"addr": 0, "stream": 0}
    trace = [{"action": "segment_alloc", "size": 20 * MIB, **entry}] * 2 + [
        {"action": "segment_free", "size": 20 * MIB, **entry}
    ] * 2
    assert [step.action for step in steps(trace)] == ["empty"]
