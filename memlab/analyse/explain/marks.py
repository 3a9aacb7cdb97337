"""What the meters noted beside a memory history: rankN.memory_marks.json (attach/memory_history.py)."""

from pathlib import Path
from typing import Any

from memlab.analyse.explain.snapshot_trace import Marks
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
        owners = {
            int(number): {int(address): str(kind) for address, kind in owned.items()}
            for number, owned in values["owners"].items()
        }
        outside = [_whole(piece["outside_bytes"]) for piece in values["pieces"]]
        return Marks(pieces, owners, str(values["folder"])), outside
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not the marks of a memory history ({error})") from None


def _piece(values: dict[str, Any]) -> Piece:
    where = values["where"]
    return Piece(_whole(values["step"]), None if where is None else str(where), bool(values["ends_phase"]))


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
