"""What the meters noted beside a memory history or an out-of-memory: rankN.memory_marks.json, rankN.out_of_memory.json.

attach/memory_history.py and attach/out_of_memory.py write them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memlab.analyse.explain.marks_schema import MarksFile
from memlab.analyse.explain.outside import Reading, Readings
from memlab.analyse.explain.snapshot_trace import Marks, PartEnd
from memlab.attach import owner
from memlab.core.errors import RecordError
from memlab.core.schema import check_of
from memlab.files.json_file import read_json
from memlab.predict.trace.trace_format import Piece


@dataclass(frozen=True)
class Driver:
    """What the driver told a rank. ``pid``: of its process. ``device``: its index of the GPU that it used at the end.
    ``readings``: index of a GPU on which it had a context -> what was read there."""

    pid: str = ""
    device: int = 0
    readings: Mapping[int, Readings] = field(default_factory=dict)

    def on(self, device: int) -> Readings:
        return self.readings.get(device, Readings(None, []))


def read_marks(path: Path) -> tuple[Marks, Driver]:
    """Read the marks, and the readings of the driver's figure.

    Raises :class:`RecordError` for a file of another form.
    """
    values = read_json(path)
    try:
        check_of(MarksFile)(values)
        pieces = [(piece["phase"] or "", _piece(piece)) for piece in values["pieces"]]
        owners = owner.from_json(values["owners"])
        paths = [str(path) for path in values.get("import_paths", ()) if path]
        ends = None if "last_parts" not in values else [_part_end(part) for part in values["last_parts"]]
        marks = Marks(
            pieces,
            owners,
            values["folder"],
            values.get("first_piece", 0),
            paths,
            ends,
            values.get("snapshot_sha256", ""),
        )
        return marks, _driver(values["outside"], int(values.get("device", 0)))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not the marks of a memory history ({error})") from None


def _driver(values: dict[str, Any], device: int) -> Driver:
    pid = str(values["pid"])
    devices = values.get("devices", {device: values})  # older marks have the readings of one GPU
    return Driver(pid, device, {int(index): _readings(each, pid) for index, each in devices.items()})


def _readings(values: dict[str, Any], pid: str) -> Readings:
    before = values["before"]
    first = None if before is None else (int(before["used_bytes"]), _others(before, pid))
    return Readings(first, [_reading(reading, pid) for reading in values["readings"]], _whole(values.get("gpu")))


def _reading(values: dict[str, Any], pid: str) -> Reading:
    return Reading(
        phase=values["phase"] or "",
        module=str(values["module"]),
        call=None if values["call"] is None else str(values["call"]),
        outside=int(values["used_bytes"]) - int(values["reserved_bytes"]),
        others=_others(values, pid) if pid in values["processes"] else None,
        time_us=int(values["time_us"]),
        until_us=int(values["until_us"]),
        reserved=int(values["reserved_bytes"]),
    )


def _others(values: dict[str, Any], pid: str) -> dict[str, int]:
    return {process: int(nbytes) for process, nbytes in values["processes"].items() if process != pid}


def _piece(values: dict[str, Any]) -> Piece:
    where = values["where"]
    return Piece(_whole(values["step"]), None if where is None else str(where), bool(values["ends_phase"]))


def _part_end(values: dict[str, Any]) -> PartEnd:
    sizes = (int(values[name]) for name in ("allocated", "peak_allocated", "peak_reserved"))
    return PartEnd(str(values["phase"]), _whole(values["step"]), 1e6 * float(values["ended_at"]), *sizes)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
