"""Recorded histories of ranks, as the meters leave them in a run folder: a model is built, then a forward pass."""

import json
import pickle
from hashlib import sha256
from pathlib import Path
from typing import Any

from memlab.runs.folder import RunFolder

MIB = 1 << 20
PLACE = 4 * MIB
CONTEXT = 600 * MIB


def snapshot(nbytes: int = MIB) -> dict[str, Any]:
    """Return torch's snapshot of a segment with two blocks of ``nbytes``."""
    entry = {"stream": 0, "frames": []}
    actions = (
        ("segment_alloc", PLACE, 2 * nbytes, 10, "0|"),
        ("alloc", PLACE, nbytes, 11, "0|"),
        ("alloc", PLACE + nbytes, nbytes, 40, "1|"),
    )
    names = ("action", "addr", "size", "time_us", "user_metadata")
    blocks = [{"state": "active_allocated", "address": PLACE + n * nbytes, "size": nbytes} for n in (0, 1)]
    return {
        "device_traces": [[entry | dict(zip(names, action, strict=True)) for action in actions]],
        "segments": [{"device": 0, "address": PLACE, "stream": 0, "total_size": 2 * nbytes, "blocks": blocks}],
        "allocator_settings": {},
    }


def marks(nbytes: int = MIB) -> dict[str, Any]:
    """Return the marks beside :func:`snapshot`: the driver's figure was read once, while the model was built."""
    reading = {"time_us": 30, "until_us": 35, "phase": "model_build", "module": "", "call": None, "processes": {}}
    reading |= {"used_bytes": CONTEXT + 2 * nbytes, "reserved_bytes": 2 * nbytes}
    piece = {"step": None, "where": None, "ends_phase": True}
    return {
        "folder": "",
        "owners": {"list": [], "looks": {}},
        "pieces": [piece | {"phase": phase} for phase in ("model_build", "forward")],
        "outside": one_gpu({"used_bytes": 0, "processes": {}}, [reading]),
    }


def one_gpu(before: dict[str, Any], readings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the driver told process 7 of its only GPU."""
    return {"pid": 7, "devices": {"0": {"gpu": 0, "before": before, "readings": readings}}}


def keep(folder: RunFolder, rank: int, snapshot: Any, marks: Any) -> None:
    """Write the history of a rank."""
    keep_files(folder.snapshot_file(rank), folder.memory_marks(rank), snapshot, marks)


def keep_files(snapshot_file: Path, marks_file: Path, snapshot: Any, marks: Any) -> None:
    """Write a snapshot and its marks, which name it."""
    content = pickle.dumps(snapshot, protocol=4)
    snapshot_file.write_bytes(content)
    whole = {"device": 0, "first_piece": 0, "import_paths": [], **marks}
    marks_file.write_text(json.dumps({**whole, "snapshot_sha256": sha256(content).hexdigest()}))
