"""Recorded histories of ranks, as the meters leave them in a run folder: a model is built, then a forward pass."""

import json
import pickle
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
        "outside": {"pid": 7, "before": {"used_bytes": 0, "processes": {}}, "readings": [reading]},
    }


def keep(folder: RunFolder, rank: int, snapshot: Any, marks: Any) -> None:
    """Write the history of a rank."""
    folder.snapshot_file(rank).write_bytes(pickle.dumps(snapshot, protocol=4))
    folder.memory_marks(rank).write_text(json.dumps(marks))
