"""An out-of-memory of which no history was recorded: the failed request, and who owned the blocks."""

import gzip
import io
import json
import pickle
import re
from pathlib import Path

import pytest
from folders import make_record
from recordings import keep_files
from rich.console import Console

from memlab.analyse.explain.accounting import UNEXPLAINED, Share
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.explained_run import ExplainedRun
from memlab.analyse.explain.recorded_ranks import RecordedRanks
from memlab.analyse.explain.snapshot_trace import NOT_RECORDED
from memlab.core.errors import RecordError
from memlab.prediction.memory.ledger import by_kind
from memlab.report.explain_text import show_explained
from memlab.report.text import show_pointer
from memlab.runs.folder import RunFolder

MIB = 1 << 20
BASE, CONTEXT = 1 << 30, 60 * MIB
SITE_PACKAGES = "/usr/lib/python3.11/site-packages"


def block(address: int, size: float, state: str = "active_allocated") -> dict:
    nbytes = int(size * MIB)
    return {"address": BASE + address * MIB, "size": nbytes, "requested_size": nbytes, "state": state}


def segment(address: int, *blocks: dict, stream: int = 0, device: int = 1) -> dict:
    size = sum(block["size"] for block in blocks)
    return {
        "device": device,
        "address": BASE + address * MIB,
        "total_size": size,
        "stream": stream,
        "blocks": list(blocks),
    }


SEGMENTS = [
    segment(0, block(0, 40), block(40, 40), block(80, 20)),
    segment(100, block(100, 8), block(108, 8), block(116, 30, "inactive")),
    segment(200, block(200, 8), stream=7),
    segment(300, block(300, 4), device=0),
]

RECORDED = Path(__file__).parents[3] / "data" / "memory_snapshot_h200.pickle.gz"

FORWARD = [
    {"filename": f"{SITE_PACKAGES}/torch/nn/functional.py", "line": 1, "name": "linear"},
    {"filename": f"{SITE_PACKAGES}/transformers/models/llama/modeling_llama.py", "line": 176, "name": "forward"},
    {"filename": "/home/user/train.py", "line": 9, "name": "main"},
]

BACKWARD = [{"filename": "??", "line": 0, "name": "torch::autograd::MmBackward0::apply()"}]


def keep(folder: RunFolder, frames=FORWARD, module: str = "layers.3.mlp", processes=None, actions=1) -> None:
    failed = {"action": "oom", "size": 70 * MIB, "device_free": 50 * MIB, "stream": 0, "time_us": 9_000_000}
    failed |= {"frames": frames, "user_metadata": f"0|{module}"}
    content = {"device_traces": [[], [failed] * actions], "segments": SEGMENTS, "allocator_settings": {}}
    used = CONTEXT + 154 * MIB
    reading = {"time_us": 9_000_100, "until_us": 9_000_100, "phase": "forward", "module": "", "call": "everything"}
    reading |= {"used_bytes": used, "reserved_bytes": 154 * MIB, "processes": processes or {}}
    owners = [
        ["weights", "GPT", "head.weight", "bfloat16", True, 1],
        ["gradients", "GPT", "up.weight", "float32", True, 1],
    ]
    parts = [
        {"phase": "backward", "step": 8, "ended_at": 7.0, "allocated": 90, "peak_allocated": 120, "peak_reserved": 130},
        {"phase": "forward", "step": 9, "ended_at": 7.5, "allocated": 80, "peak_allocated": 85, "peak_reserved": 200},
        {"phase": "forward", "step": 9, "ended_at": 8.0, "allocated": 70, "peak_allocated": 95, "peak_reserved": 130},
    ]
    marks = {
        "device": 1,
        "folder": "/home/user",
        "pieces": [{"phase": "forward", "step": 9, "where": "train.py:9", "ends_phase": False}],
        "owners": {"list": owners, "looks": {0: {BASE: 0, BASE + 40 * MIB: 1}}},
        "outside": {"pid": 5, "devices": {1: {"gpu": 1, "before": None, "readings": [reading]}}},
        "last_parts": parts,
    }
    keep_files(folder.out_of_memory_snapshot(0), folder.out_of_memory_marks(0), content, marks)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path)
    keep(folder)
    return folder


@pytest.fixture
def rank(folder) -> Explained:
    return RecordedRanks(folder, []).explain(0)


def lines(share: Share) -> dict[str, int]:
    """Return the lowest parts of a tree, in MiB."""
    if not share.parts:
        return {share.name: share.nbytes // MIB}
    return {name: size for part in share.parts for name, size in lines(part).items()}


def text(rank: Explained) -> str:
    console = Console(width=400, record=True, file=io.StringIO())
    show_explained(rank, console, depth=5)
    return " ".join(console.export_text().split())


def test_the_failed_request_is_named_with_what_was_free(rank):
    request = rank.oom.request
    assert (request.nbytes, request.free_on_device, rank.oom.holes) == (70 * MIB, 50 * MIB, (30 * MIB,))
    assert (request.site.module, request.site.function) == ("layers.3.mlp", "forward")
    assert request.site.where == "transformers/models/llama/modeling_llama.py:176"
    assert request.site.user_line == "train.py:9"
    assert rank.oom.part[:2] == ("forward", 9) and rank.oom.is_fragmentation


def test_blocks_are_named_by_their_owner_or_by_their_size(rank):
    kinds = {held.site.kind: held.nbytes // MIB for held in rank.oom.moment.holdings}
    assert kinds["weights"] == kinds["gradients"] == 40
    assert lines(rank.oom.used) == {
        "head.weight": 40,
        "up.weight": 40,
        "1 block of 20.00 MiB": 20,
        "2 blocks of 8.00 MiB": 16,
        "1 block of 8.00 MiB (stream 1)": 8,
        "holes: free, in segments that hold other blocks": 30,
        "CUDA context, NCCL, cuBLAS handles and kernels and other processes": 60,
    }


def test_the_parts_add_up_to_the_drivers_figure_and_nothing_is_called_unexplained(rank):
    whole = rank.oom.used
    assert whole.nbytes == sum(part.nbytes for part in whole.parts) == CONTEXT + 154 * MIB
    assert UNEXPLAINED not in {part.name for part in whole.parts} and rank.unexplained(rank.peak) == 0
    assert not rank.has_history and rank.peak is rank.oom.moment and rank.phases == ()


def test_other_processes_are_told_apart_where_the_driver_tells_of_them(folder):
    keep(folder, processes={"5": 204 * MIB, "6": 10 * MIB})
    parts = {part.name: part.nbytes // MIB for part in RecordedRanks(folder, []).explain(0).oom.used.parts[1].parts}
    assert parts == {"CUDA context, NCCL, cuBLAS handles and kernels": 50, "other processes": 10}


def test_the_last_parts_of_the_run_come_in_order_and_those_of_one_phase_together(rank):
    assert [part[:3] for part in rank.oom.last_parts] == [("backward", 8, 2.0), ("forward", 9, 1.0)]
    assert rank.oom.last_parts[-1][3:] == (70, 95, 200)


def test_the_text_begins_with_the_failure_and_says_what_is_not_known(rank):
    shown = text(rank)
    assert shown.startswith(
        "Rank 0 ran out of memory (forward, step 9, train.py:9): 70.0 MiB requested by forward in layers.3.mlp "
        "(transformers/models/llama/modeling_llama.py:176). torch's allocator could take 50.0 MiB more from the GPU, "
        "and had 30.0 MiB free in 1 piece of at most 30.0 MiB. In one piece, the free memory would have been enough"
    )
    assert "named by their owners, and not by the lines" in shown
    assert re.search(r"requested by the program \(([^()]+, )?not recorded [0-9.]+ MiB[,)]", " ".join(shown.split()))
    assert NOT_RECORDED in shown and "2 blocks of 8.00 MiB" in shown
    assert "At its peak" not in shown and "GiB allocated in" not in shown


def test_the_peak_of_a_run_without_a_history_is_where_it_ran_out(rank):
    assert (rank.at.phase, rank.at.step) == ("forward", 9)


def test_in_a_backward_the_node_is_named(folder):
    keep(folder, frames=BACKWARD, module="")
    assert "requested by MmBackward0. torch's allocator" in text(RecordedRanks(folder, []).explain(0))


def test_outside_of_phases_the_line_alone_is_named(folder):
    marks = json.loads(folder.out_of_memory_marks(0).read_text())
    marks["pieces"][0] |= {"phase": None, "step": None, "where": None}
    folder.out_of_memory_marks(0).write_text(json.dumps(marks))
    assert text(RecordedRanks(folder, []).explain(0)).startswith("Rank 0 ran out of memory (train.py:9): 70.0 MiB")


def test_a_run_that_went_on_and_ran_out_again_says_so(folder):
    rank = RecordedRanks(folder, [{"rank": 0, **{"num_ooms": 3, "status": "ok"}}]).explain(0)
    assert "ran out of memory 3 times; this is the last one. The run went on after it." in text(rank)


def test_a_snapshot_without_a_failed_request_is_refused(folder):
    keep(folder, actions=0)
    with pytest.raises(RecordError, match="empty"):
        RecordedRanks(folder, []).explain(0)


def test_the_recorded_steps_stay_known_beside_a_later_out_of_memory(folder):
    actions = [("segment_alloc", 100, ()), ("alloc", 60, FORWARD), ("alloc", 40, FORWARD)]
    entries = [
        {"action": name, "addr": BASE, "size": size * MIB, "time_us": 1_000_000 + size, "user_metadata": "0|mlp"}
        | {"frames": list(frames)}
        for name, size, frames in actions
    ]
    entries[2]["addr"] = BASE + 60 * MIB
    blocks = segment(0, block(0, 60), block(60, 40))
    content = {"device_traces": [[], entries], "segments": [blocks], "allocator_settings": {}}
    marks = json.loads(folder.out_of_memory_marks(0).read_text())
    del marks["last_parts"]
    for of_gpu in marks["outside"]["devices"].values():
        of_gpu["readings"][0].update(time_us=1_000_000, until_us=1_000_100)
    marks["pieces"] = [{"phase": "first_forward", "step": 1, "where": "train.py:9", "ends_phase": True}]
    keep_files(folder.snapshot_file(0), folder.memory_marks(0), content, marks)
    rank = RecordedRanks(folder, []).explain(0)
    assert rank.has_history and rank.peak.requested == 100 * MIB and rank.oom.moment.requested == 124 * MIB
    shown = text(rank)
    assert shown.index("ran out of memory (forward, step 9") < shown.index("The recorded steps came before it")
    assert "At its peak (first_forward, step 1" in shown and "memory when it ran out, rank 0" in shown


def test_what_needs_a_history_is_refused_with_what_to_do(folder, rank):
    record = make_record(status="gpu_oom")
    record.command = {"words": ["python", "my train.py"]}
    with pytest.raises(RecordError, match=r"memlab measure --explain --explain-oom -- python 'my train\.py'"):
        ExplainedRun(folder, record, [rank]).need_history()


def test_the_table_of_a_run_points_to_the_explanation(folder, tmp_path):
    console = Console(width=400, record=True, file=io.StringIO())
    show_pointer([RunFolder(tmp_path / "another")], console)
    show_pointer([RunFolder(tmp_path / "another"), folder], console)
    assert console.export_text() == f"What held the memory when it ran out: memlab explain {tmp_path}\n"
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "rank0.memory_snapshot.pickle").touch()
    show_pointer([RunFolder(tmp_path / "recorded")], console)
    assert console.export_text() == f"Where every byte goes: memlab explain {tmp_path / 'recorded'}\n"


def test_a_snapshot_of_an_h200_without_its_history_adds_up(tmp_path):
    with gzip.open(RECORDED) as file:
        content = pickle.load(file)
    for each in (block for segment in content["segments"] for block in segment["blocks"]):
        each.pop("frames", None)
    failed = {"action": "oom", "size": MIB, "device_free": 0, "time_us": 1, "frames": [], "user_metadata": "0|"}
    content["device_traces"] = [[failed]]
    folder = RunFolder(tmp_path)
    keep(folder)
    marks = json.loads(folder.out_of_memory_marks(0).read_text())
    keep_files(folder.out_of_memory_snapshot(0), folder.out_of_memory_marks(0), content, marks)
    moment = RecordedRanks(folder, []).explain(0).oom.moment
    in_use = [each for segment in content["segments"] for each in segment["blocks"] if each["state"] != "inactive"]
    assert moment.requested == sum(each["requested_size"] for each in in_use) > 0
    assert moment.reserved == sum(segment["total_size"] for segment in content["segments"])
    assert moment.reserved == moment.requested + moment.slack.total
    assert {held.site.kind for held in moment.holdings} == {NOT_RECORDED}


def test_what_an_h200_kept_adds_up_to_the_drivers_figure(tmp_path):
    """tests/scripts/runs_out.py with --gib 20, beside other processes on the GPU (torch 2.11+cu130)."""
    folder = RunFolder(tmp_path)
    files = (RECORDED.with_name(f"out_of_memory_h200.{suffix}.gz") for suffix in ("pickle", "json"))
    snapshot, marks = (gzip.decompress(file.read_bytes()) for file in files)
    places = folder.out_of_memory_snapshot(0), folder.out_of_memory_marks(0)
    keep_files(*places, pickle.loads(snapshot), json.loads(marks))
    rank = RecordedRanks(folder, []).explain(0)
    assert (rank.oom.request.site.module, rank.oom.request.site.where) == ("blocks.6", "tests/scripts/gpt.py:22")
    assert rank.oom.part[:2] == ("forward", 3) and rank.oom.last_parts[-1].phase == "optimizer_step"
    assert rank.oom.moment.reserved < 20 << 30 < rank.oom.moment.reserved + rank.oom.request.nbytes
    assert rank.oom.request.free_on_device <= (20 << 30) - rank.oom.moment.reserved
    kinds = by_kind(rank.oom.moment.holdings)
    assert kinds["optimizer states"] == pytest.approx(2 * kinds["weights"], rel=1e-3) and kinds[NOT_RECORDED] > 0
    whole = rank.oom.used
    assert whole.nbytes == sum(part.nbytes for part in whole.parts) and rank.unexplained(rank.peak) == 0
