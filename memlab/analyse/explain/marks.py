"""What the meters noted beside a memory history: rankN.memory_marks.json (attach/memory_history.py)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memlab.analyse.explain.snapshot import Snapshot
from memlab.analyse.explain.snapshot_trace import Marks
from memlab.attach import owner
from memlab.core.errors import RecordError
from memlab.files.json_file import read_json
from memlab.predict.trace.trace_format import Piece


def read_marks(path: Path) -> tuple[Marks, list[int | None]]:
    """Read the marks, and the bytes that the driver counted outside the allocator at the end of each piece.

    Raises :class:`RecordError` for a file of another form.
    """
    values = read_json(path)
    try:
        pieces = [(piece["phase"] or "", _piece(piece)) for piece in values["pieces"]]
        owners = owner.from_json(values["owners"])
        outside = [_whole(piece["outside_bytes"]) for piece in values["pieces"]]
        return Marks(pieces, owners, str(values["folder"])), outside
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not the marks of a memory history ({error})") from None


def with_piece_of_oom(marks: Marks, snapshot: Snapshot, oom: Mapping[str, Any] | None) -> Marks:
    """Add the piece in which memory ran out: the history ends in it, before the meters can note it.

    ``oom``: of the rank's result; ``None`` if the rank did not end so.
    """
    ended_by_it = any(entry.action == "oom" for entry in snapshot.entries)
    if not ended_by_it or not oom or not oom.get("phase"):
        return marks
    piece = Piece(_whole(oom.get("step")), oom.get("where"), False)
    return replace(marks, pieces=[*marks.pieces, (str(oom["phase"]), piece)])


def _piece(values: dict[str, Any]) -> Piece:
    where = values["where"]
    return Piece(_whole(values["step"]), None if where is None else str(where), bool(values["ends_phase"]))


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
