"""What the meters noted beside a memory history: rankN.memory_marks.json (attach/memory_history.py)."""

from pathlib import Path
from typing import Any

from memlab.analyse.explain.outside import Reading, Readings
from memlab.analyse.explain.snapshot_trace import Marks
from memlab.attach import owner
from memlab.core.errors import RecordError
from memlab.files.json_file import read_json
from memlab.predict.trace.trace_format import Piece


def read_marks(path: Path) -> tuple[Marks, Readings]:
    """Read the marks, and the readings of the driver's figure.

    Raises :class:`RecordError` for a file of another form.
    """
    values = read_json(path)
    try:
        pieces = [(piece["phase"] or "", _piece(piece)) for piece in values["pieces"]]
        owners = owner.from_json(values["owners"])
        paths = [str(path) for path in values.get("import_paths", ()) if path]
        marks = Marks(pieces, owners, str(values["folder"]), int(values.get("first_piece", 0)), paths)
        return marks, _readings(values["outside"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not the marks of a memory history ({error})") from None


def _readings(values: dict[str, Any]) -> Readings:
    pid, before = str(values["pid"]), values["before"]
    first = None if before is None else (int(before["used_bytes"]), _others(before, pid))
    return Readings(first, [_reading(reading, pid) for reading in values["readings"]])


def _reading(values: dict[str, Any], pid: str) -> Reading:
    return Reading(
        phase=values["phase"] or "",
        module=str(values["module"]),
        call=None if values["call"] is None else str(values["call"]),
        outside=int(values["used_bytes"]) - int(values["reserved_bytes"]),
        others=_others(values, pid) if pid in values["processes"] else None,
        time_us=int(values["time_us"]),
        until_us=int(values["until_us"]),
    )


def _others(values: dict[str, Any], pid: str) -> int:
    return sum(int(nbytes) for process, nbytes in values["processes"].items() if process != pid)


def _piece(values: dict[str, Any]) -> Piece:
    where = values["where"]
    return Piece(_whole(values["step"]), None if where is None else str(where), bool(values["ends_phase"]))


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
