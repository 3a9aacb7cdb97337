"""Types of the values in rankN.memory_marks.json and rankN.out_of_memory.json, which memlab/core/schema.py checks."""

from typing import TypedDict

from memlab.core.record_schema import Bytes, Count


class PieceMarks(TypedDict):
    """Part of the run. ``where``: line of the user's script at its beginning."""

    phase: str | None
    step: Count | None
    where: str | None
    ends_phase: bool


class UsedMarks(TypedDict):
    """``processes``: id of each process on the GPU -> bytes."""

    used_bytes: Bytes
    processes: dict[str, Bytes]


class ReadingMarks(UsedMarks):
    """A reading of the driver's figure (attach/driver_readings.py)."""

    phase: str | None
    module: str
    call: str | None
    reserved_bytes: Bytes
    time_us: Count
    until_us: Count


class GpuMarks(TypedDict, total=False):
    """All that the driver told of one GPU. ``gpu``: NVML's index."""

    gpu: Count | None
    before: UsedMarks | None
    readings: list[ReadingMarks]


class OutsideMarks(GpuMarks, total=False):
    """``devices``: index of a GPU in this process -> its marks. Older files have those of one GPU beside ``pid``."""

    pid: int
    devices: dict[str, GpuMarks]


class OwnersMarks(TypedDict):
    """Owners, each once, and number of a piece -> address -> number of its owner (attach/owner.py)."""

    list: list[list[str | bool | int]]
    looks: dict[str, dict[str, Count]]


class PartEndMarks(TypedDict):
    """Part of the run before an out-of-memory (attach/out_of_memory.py). ``ended_at``: seconds since the epoch."""

    phase: str
    step: Count | None
    ended_at: float
    allocated: Bytes
    peak_allocated: Bytes
    peak_reserved: Bytes


class _Optional(TypedDict, total=False):
    device: Count
    first_piece: Count
    import_paths: list[str]
    last_parts: list[PartEndMarks]
    snapshot_sha256: str


class MarksFile(_Optional):
    """What the meters of a rank noted beside its memory history (attach/memory_history.py) or an out-of-memory.

    ``snapshot_sha256``: of the file with the history.
    """

    folder: str
    pieces: list[PieceMarks]
    owners: OwnersMarks
    outside: OutsideMarks
