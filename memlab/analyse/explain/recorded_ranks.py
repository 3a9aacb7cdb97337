"""Ranks of a measured run, explained: from the histories that they recorded, or what they kept when memory ran out.

The metadata of both (phases, owners, driver readings) is in rankN.memory_marks.json and rankN.out_of_memory.json.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any, TypedDict

from memlab.analyse.explain.accounting import used
from memlab.analyse.explain.explained import Explained, History, explain_history
from memlab.analyse.explain.out_of_memory import OutOfMemoryExplained, last_events, last_parts
from memlab.analyse.explain.outside import Device, GpuMarks, MeasuredDevice, Outside, handles_made
from memlab.analyse.explain.phases import parts_of
from memlab.analyse.explain.snapshot import Snapshot, read_snapshot
from memlab.analyse.explain.snapshot_trace import Marks, MeasuredTrace, PartEnd, trace_of
from memlab.core.errors import ConfigError, RecordError
from memlab.core.schema import check_of
from memlab.core.value_types import Count
from memlab.files.json_file import read_json
from memlab.files.regular_file import open_regular
from memlab.meters import owner
from memlab.prediction.memory.ledger import moments
from memlab.runs.folder import RunFolder
from memlab.simulator.allocator import RecordingAllocator, parse
from memlab.simulator.trace.trace_format import Piece


class PieceMarks(TypedDict):
    """Part of the run. ``where``: line of the user's script at its beginning."""

    phase: str | None
    step: Count | None
    where: str | None
    ends_phase: bool


class OutsideMarks(TypedDict):
    """``devices``: index of a GPU in this process -> its marks."""

    pid: int
    devices: dict[str, GpuMarks]


class OwnersMarks(TypedDict):
    """Owners, each once, and number of a piece -> address -> number of its owner (meters/owner.py)."""

    list: list[list[str | bool | int]]
    looks: dict[str, dict[str, Count]]


class _OutOfMemoryMarks(TypedDict, total=False):
    last_parts: list[PartEnd]


class MarksFile(_OutOfMemoryMarks):
    """What the meters of a rank noted beside its memory history (meters/memory_history.py) or an out-of-memory.

    ``snapshot_sha256``: of the file with the history.
    """

    folder: str
    import_paths: list[str]
    device: Count
    first_piece: Count
    pieces: list[PieceMarks]
    owners: OwnersMarks
    outside: OutsideMarks
    snapshot_sha256: str


def read_marks(path: Path) -> Marks:
    """Read the marks. Raises :class:`RecordError` for a file of another form."""
    values = read_json(path)
    try:
        check_of(MarksFile)(values)
        return Marks(
            pieces=[
                (piece["phase"] or "", Piece(piece["step"], piece["where"], piece["ends_phase"]))
                for piece in values["pieces"]
            ],
            owners=owner.from_json(values["owners"]),
            folder=values["folder"],
            first=values["first_piece"],
            import_paths=list(filter(None, values["import_paths"])),
            last_parts=values.get("last_parts"),
            snapshot_sha256=values["snapshot_sha256"],
            pid=str(values["outside"]["pid"]),
            device=values["device"],
            gpus={int(index): told for index, told in values["outside"]["devices"].items()},
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not the marks of a memory history ({error})") from None


NO_HISTORY = "no memory history is in this folder"


class RecordedRanks:
    """Ranks of a measured run that left a history in its folder, a snapshot of their last out-of-memory, or both.

    ``results``: those of the record.
    """

    def __init__(self, folder: RunFolder, results: Sequence[Mapping[str, Any]]):
        self._folder = folder
        self._results = {result["rank"]: result for result in results}
        self._with_history = set(folder.ranks_with_history())
        self._out_of_memory = set(folder.ranks_out_of_memory())
        self.numbers = sorted({*self._results, *self._with_history, *self._out_of_memory})

    def explain(self, rank: int) -> Explained:
        """Explain a rank. Raises :class:`RecordError` if it left nothing, or its files are not usable."""
        folder = self._folder
        found = None
        if rank in self._with_history:
            found = self._explain_files(rank, folder.snapshot_file(rank), folder.memory_marks(rank))
        if rank in self._out_of_memory:
            kept = self._explain_kept(rank)
            found = replace(found, oom=kept.oom) if found else kept  # it came after the history
        if found is None:
            raise RecordError(NO_HISTORY)
        result = self._results.get(rank)
        if found.oom is None or result is None:
            return found
        times, goes_on = max(1, result["num_ooms"] or 1), result["status"] != "gpu_oom"
        return replace(found, oom=replace(found.oom, times=times, goes_on=goes_on))

    def _explain_kept(self, rank: int) -> Explained:
        """Explain the last out-of-memory of a rank, of which no history was recorded."""
        file = self._folder.out_of_memory_snapshot(rank)
        kept = self._explain_files(rank, file, self._folder.out_of_memory_marks(rank))
        if kept.oom is None:
            raise RecordError(f"{file}: no failed request is in this snapshot")
        at = kept.at._replace(phase=kept.oom.part.phase, step=kept.oom.part.step)
        return replace(kept, peak=kept.oom.moment, at=at, phases=(), has_history=False)

    def _explain_files(self, rank: int, snapshot_file: Path, marks_file: Path) -> Explained:
        snapshot = read_snapshot(snapshot_file)
        marks = read_marks(marks_file)
        measured = trace_of(snapshot, rank, len(self.numbers), marks)
        if not (snapshot.entries and measured.trace.events):
            raise RecordError(f"{snapshot_file}: the history is empty: nothing was allocated on the GPU")
        if min(measured.reserved) < 0:
            raise RecordError(f"{snapshot_file}: damaged: the allocator gives more memory back than it has")
        with open_regular(snapshot_file) as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != marks.snapshot_sha256:
                raise RecordError(f"{marks_file}: not from the recording of {snapshot_file.name}")
        told = marks.told_of(snapshot.device)
        settings = str(snapshot.settings.get("PYTORCH_CUDA_ALLOC_CONF", ""))
        try:
            options = parse(settings)
        except ConfigError as error:
            raise RecordError(f"{snapshot_file}: {error}") from error
        recorder = partial(RecordingAllocator, options, addresses=measured.segments, before=measured.before)
        history = History(measured.trace, settings, recorder, measured.seconds)
        others = [] if told["gpu"] is None else self._processes
        strays = {pid: number for number, pid, gpu in others if gpu not in (None, told["gpu"])}
        outside = Outside(told, marks.pid, handles_made(snapshot.entries), strays)
        begins = measured.seconds or [0.0] * len(measured.trace.events)
        until_us = [snapshot.entries[0].time_us + 1e6 * end for end in (*begins[1:], inf)]
        device = MeasuredDevice(outside, measured.reserved, until_us, snapshot.device, snapshot.elsewhere)
        oom = _out_of_memory(measured, snapshot, device, recorder())
        if oom is not None and marks.last_parts is not None:
            oom = replace(oom, last=(), last_parts=last_parts(marks.last_parts, snapshot.entries[-1].time_us))
        explained = explain_history("measured", history, device, oom=oom)
        if explained.peak.requested > measured.reserved[explained.peak.event]:
            raise RecordError(f"{snapshot_file}: damaged: the program holds more than the allocator has")
        return explained

    @cached_property
    def _processes(self) -> list[tuple[int, str, int | None]]:
        """Number of each rank with readable marks, the id of its process, and the GPU on which it computes."""
        found: list[tuple[int, str, int | None]] = []
        for rank in sorted(self._with_history):
            with suppress(RecordError):  # damaged marks end the explanation of their own rank
                marks = read_marks(self._folder.memory_marks(rank))
                found.append((rank, marks.pid, marks.told_of(marks.device)["gpu"]))
        return found


def _out_of_memory(
    measured: MeasuredTrace, snapshot: Snapshot, device: Device, allocator: RecordingAllocator
) -> OutOfMemoryExplained | None:
    if measured.failed is None:
        return None
    end = len(measured.trace.events) - 1
    part = parts_of(measured.trace, end + 1)[-1]
    replayed = moments(measured.trace, {end}, allocator)[end]
    slack = snapshot.slack  # a replay comes near to it where the history begins in expandable segments
    allocated = replayed.requested + slack.rounding
    moment = replace(replayed, allocated=allocated, reserved=snapshot.reserved, slack=slack)
    holes = tuple(sorted(snapshot.free, reverse=True))
    failed_at, seconds = measured.failed.seconds, measured.seconds
    before = None if failed_at is None or seconds is None else [failed_at - second for second in seconds]
    last = last_events(measured.trace, measured.reserved, before)
    tree = used(moment, device.outside(end), device.driver(end))
    return OutOfMemoryExplained(measured.failed, part, holes, moment, tree, last)
