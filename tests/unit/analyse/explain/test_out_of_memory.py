"""A history that ends with an out-of-memory: the request, what was free, who held what, and the last events."""

import io
from types import SimpleNamespace

import pytest
from recordings import keep, one_gpu
from rich.console import Console

from memlab.analyse.explain.accounting import UNEXPLAINED
from memlab.analyse.explain.explained import fullest
from memlab.analyse.explain.out_of_memory import FREED, REQUESTED
from memlab.analyse.explain.recorded_ranks import RecordedRanks
from memlab.report.explain_text import show_explained
from memlab.runs.folder import RunFolder

MIB = 1 << 20
TOTAL, CONTEXT = 200 * MIB, 60 * MIB
BASE = 1 << 30


def frames(line: int, operator: str) -> list[dict]:
    compiled = {"filename": "??", "line": 0, "name": f"at::_ops::{operator}::call(at::Tensor const&)"}
    return [compiled, {"filename": "/home/user/train.py", "line": line, "name": "main"}]


def entry(action: str, address: int, size: int, label: str, at: int, stack=()) -> dict:
    where = {"device_free": 50 * MIB} if action == "oom" else {"addr": BASE + address * MIB}
    values = {"action": action, "size": size * MIB, "stream": 0, "time_us": at, "user_metadata": label}
    return {**values, **where, "frames": list(stack)}


ENTRIES = [
    entry("segment_alloc", 0, 40, "3|", 1_000_000),
    entry("alloc", 0, 40, "3|", 1_000_000, frames(3, "ones")),
    entry("segment_alloc", 40, 50, "4|mlp", 1_200_000),
    entry("alloc", 40, 30, "4|mlp", 1_200_000, frames(7, "mm")),
    entry("alloc", 70, 20, "4|mlp", 1_300_000, frames(8, "mm")),
    entry("free_requested", 40, 30, "4|mlp", 1_400_000),
    entry("free_completed", 40, 30, "4|mlp", 1_400_000),
    entry("oom", 0, 70, "4|head", 1_500_000, frames(9, "bmm")),
]


def block(address: int, size: int, state: str = "active_allocated", requested: int | None = None) -> dict:
    asked = size if requested is None else requested
    return {"address": BASE + address * MIB, "size": size * MIB, "requested_size": asked * MIB, "state": state}


SEGMENTS = [
    {"device": 0, "address": BASE, "total_size": 40 * MIB, "blocks": [block(0, 40)]},
    {
        "device": 0,
        "address": BASE + 40 * MIB,
        "total_size": 50 * MIB,
        "blocks": [block(40, 30, "inactive"), block(70, 20)],
    },
]


@pytest.fixture
def rank(tmp_path):
    content = {"device_traces": [ENTRIES], "segments": SEGMENTS, "allocator_settings": {}}
    folder = RunFolder(tmp_path)
    reading = {"time_us": 900_000, "until_us": 1_400_000, "phase": "load", "module": "", "call": "set_device"}
    reading |= {"used_bytes": CONTEXT, "reserved_bytes": 0, "processes": {}}
    pieces = [
        {"phase": "backward", "step": 8, "where": "train.py:6", "ends_phase": True},
        {"phase": "forward", "step": 9, "where": "train.py:5", "ends_phase": False},
    ]
    marks = {
        "folder": "/home/user",
        "first_piece": 3,
        "pieces": pieces,
        "owners": {"list": [["weights", "GPT", "head.weight", "float32", True, 1]], "looks": {4: {BASE: 0}}},
        "outside": one_gpu({"used_bytes": 0, "processes": {}}, [reading]),
    }
    keep(folder, 0, content, marks)
    return RecordedRanks(folder, []).explain(0)


def test_the_failed_request_is_named_with_what_was_free(rank):
    request = rank.oom.request
    assert (request.nbytes, request.free_on_device, rank.oom.holes) == (70 * MIB, 50 * MIB, (30 * MIB,))
    assert (request.site.op, request.site.module, request.site.where) == ("aten.bmm", "head", "train.py:9")
    assert rank.oom.part[:2] == ("forward", 9)
    assert rank.oom.is_fragmentation


def test_who_held_what_adds_up_to_the_drivers_figure(rank):
    assert {held.site.kind: held.nbytes for held in rank.oom.moment.holdings} == {
        "weights": 40 * MIB,
        "activations": 20 * MIB,
    }
    whole = rank.used(rank.oom.moment)
    assert whole.nbytes == sum(part.nbytes for part in whole.parts) == CONTEXT + 90 * MIB
    assert UNEXPLAINED not in {part.name for part in whole.parts}


def test_the_last_events_come_in_order_with_their_time_before_the_failure(rank):
    found = [(event.action, event.nbytes // MIB, event.site.where, event.seconds) for event in rank.oom.last]
    assert found == [
        (REQUESTED, 40, "train.py:3", pytest.approx(0.5)),
        (REQUESTED, 30, "train.py:7", pytest.approx(0.3)),
        (REQUESTED, 20, "train.py:8", pytest.approx(0.2)),
        (FREED, 30, "train.py:7", pytest.approx(0.1)),
    ]


def test_a_rank_that_ran_out_of_memory_is_explained_before_a_fuller_one(rank):
    fuller = SimpleNamespace(oom=None, peak=SimpleNamespace(allocated=TOTAL))
    assert fullest([fuller, rank]) is rank


def test_the_text_begins_with_the_failure(rank):
    console = Console(width=400, record=True, file=io.StringIO())
    show_explained(rank, console, depth=3)
    text = console.export_text()
    assert text.startswith(
        "Rank 0 ran out of memory (forward, step 9): 70.0 MiB requested by bmm in head (train.py:9). torch's "
        "allocator could take 50.0 MiB more from the GPU, and had 30.0 MiB free in 1 piece of at most 30.0 MiB. In "
        "one piece, the free memory would have been enough: the allocator's memory is fragmented."
    )
    assert "freed: mm in mlp (train.py:7)" in text and "memory when it ran out, rank 0" in text
