"""The replay against what a real allocator did. The recordings are made by benchmarks/record_snapshot.py on a GPU.

They are JSON: the entries of one device in ``torch.cuda.memory._snapshot()["device_traces"]`` without their stacks,
with the bytes reserved after each entry.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memlab.analyse.explain.snapshot import SEGMENT_ACTIONS
from memlab.simulator.allocator import CachingAllocator, Options
from memlab.simulator.allocator.blocks import Block

MIB = 1 << 20
RECORDINGS = sorted((Path(__file__).parents[2] / "data").glob("allocator_*.json"))


@dataclass(frozen=True)
class Step:
    """One action of the program, and the bytes that the real allocator had reserved then."""

    action: str  # alloc, free_requested, free_completed or empty
    address: int
    nbytes: int
    stream: int
    reserved: int


def load(path: Path) -> tuple[Options, list[Step]]:
    """Read the allocator's options and the history from a recorded file."""
    recorded = json.loads(path.read_text(encoding="utf-8"))
    return Options(expandable_segments=recorded["expandable_segments"]), list(steps(recorded["trace"]))


def steps(trace: list[dict[str, Any]]) -> Iterator[Step]:
    """Yield the program's actions in a history.

    torch records the new segments of a request before the request itself, so the reserved bytes at an ``alloc`` include
    them. Several segments freed in a row are one emptied cache, requested by the program or by a request that found no
    room. ``snapshot`` and ``oom`` entries are skipped.
    """
    reserved, emptying = 0, False
    for entry in trace:
        action = entry["action"]
        reserved += SEGMENT_ACTIONS.get(action, 0) * entry["size"]
        if SEGMENT_ACTIONS.get(action) == -1:
            if not emptying:
                yield Step("empty", 0, 0, 0, reserved)
            emptying = True
        elif action in ("alloc", "free_requested", "free_completed"):
            emptying = False
            yield Step(action, entry["addr"], entry["size"], entry["stream"], reserved)


def replayed(options: Options, history: list[Step]) -> list[tuple[int, int]]:
    """Replay a history. Return (bytes reserved by the real allocator, bytes reserved by the replay) after each request.

    No release delay is assumed: each block waits from ``free_requested`` to ``free_completed``, as in the history.
    """
    allocator = HistoryAllocator(options)
    curve = []
    for step in history:
        if step.action == "alloc":
            allocator.malloc(step.address, step.nbytes, step.stream)
            curve.append((step.reserved, allocator.reserved))
        elif step.action == "free_requested":
            allocator.free(step.address)
        elif step.action == "empty":
            allocator.empty_cache()
        else:
            allocator.complete(step.address)
    return curve


class HistoryAllocator(CachingAllocator):
    """An allocator that makes a freed block reusable when :meth:`complete` is called."""

    def __init__(self, options: Options):
        super().__init__(options)
        self._waiting: dict[int, Block] = {}

    def free(self, key: int, release_delay: int | None = None) -> None:
        block = self._live.pop(key)
        if block is None:  # a request for 0 bytes
            return
        block.allocated, block.waiting = False, True
        self.allocated -= block.size
        self._waiting[key] = block

    def complete(self, key: int) -> None:
        block = self._waiting.pop(key)
        block.waiting = False
        self._give_back(block)


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
