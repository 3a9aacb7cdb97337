"""Memory history of a real allocator, recorded by torch, to compare a replay with.

The input is JSON that ``benchmarks/record_snapshot.py`` writes: the entries of one device in
``torch.cuda.memory._snapshot()["device_traces"]`` without their stacks, with the bytes reserved after each entry.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memlab.predict.allocator import CachingAllocator, Options
from memlab.predict.allocator.blocks import Block

SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


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
        reserved += SEGMENTS.get(action, 0) * entry["size"]
        if SEGMENTS.get(action) == -1:
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
