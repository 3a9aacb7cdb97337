"""A rank of a measured run, explained: from the history that it recorded, or from what it kept when memory ran out."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from memlab.analyse.explain.accounting import used
from memlab.analyse.explain.device import Device, MeasuredDevice
from memlab.analyse.explain.explained import Explained, History, explain_history
from memlab.analyse.explain.marks import read_marks
from memlab.analyse.explain.out_of_memory import OutOfMemory, last_events, last_parts
from memlab.analyse.explain.outside import Outside, handles_made
from memlab.analyse.explain.phases import parts_of
from memlab.analyse.explain.snapshot import Snapshot, read_snapshot
from memlab.analyse.explain.snapshot_trace import MeasuredTrace, trace_of
from memlab.core.errors import RecordError
from memlab.predict.allocator import RecordingAllocator, parse
from memlab.predict.memory.ledger import moments
from memlab.runs.folder import RunFolder


def explain_recording(
    folder: RunFolder, rank: int, world_size: int, result: Mapping[str, Any] | None = None
) -> Explained:
    """Explain a rank that left its history in a run folder, a snapshot of its last out-of-memory, or both.

    ``result``: of the record; ``None`` if the rank has none. Raises :class:`RecordError` if its files are not usable.
    """
    recorded = kept = None
    if rank in folder.ranks_with_history():
        recorded = _explain_files(folder, folder.snapshot_file(rank), folder.memory_marks(rank), rank, world_size)
    if rank in folder.ranks_out_of_memory():
        kept = _explain_kept(folder, rank, world_size)
    found = kept if recorded is None else recorded if kept is None else replace(recorded, oom=kept.oom)  # the later one
    if found.oom is None or result is None:
        return found
    times, goes_on = max(1, result["num_ooms"] or 1), result["status"] != "gpu_oom"
    return replace(found, oom=replace(found.oom, times=times, goes_on=goes_on))


def _explain_kept(folder: RunFolder, rank: int, world_size: int) -> Explained:
    """Explain the last out-of-memory of a rank, of which no history was recorded."""
    snapshot_file, marks_file = folder.out_of_memory_snapshot(rank), folder.out_of_memory_marks(rank)
    kept = _explain_files(folder, snapshot_file, marks_file, rank, world_size)
    if kept.oom is None:
        raise RecordError(f"{snapshot_file}: no failed request is in this snapshot")
    return replace(kept, peak=kept.oom.moment, phases=(), has_history=False)


def _explain_files(folder: RunFolder, snapshot_file: Path, marks_file: Path, rank: int, world_size: int) -> Explained:
    snapshot = read_snapshot(snapshot_file)
    marks, driver = read_marks(marks_file)
    measured = trace_of(snapshot, rank, world_size, marks)
    if not (snapshot.entries and measured.trace.events):
        raise RecordError(f"{snapshot_file}: the history is empty: nothing was allocated on the GPU")
    settings = str(snapshot.settings.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    recorder = partial(RecordingAllocator, parse(settings), addresses=measured.segments, before=measured.before)
    history = History(measured.trace, settings, recorder, measured.seconds)
    readings = driver.on(snapshot.device)
    outside = Outside(readings, handles_made(snapshot.entries), _strays(folder, readings.gpu))
    until_us = _until_us(snapshot, measured)
    device = MeasuredDevice(outside, measured.reserved, until_us, snapshot.device, snapshot.elsewhere)
    oom = _out_of_memory(measured, snapshot, device, recorder())
    if oom is not None and marks.last_parts is not None:
        oom = replace(oom, last=(), last_parts=last_parts(marks.last_parts, snapshot.entries[-1].time_us))
    return explain_history("measured", history, device, oom=oom)


def _strays(folder: RunFolder, gpu: int | None) -> dict[str, int]:
    """Return process id -> rank of the ranks that compute on other GPUs than ``gpu``, as far as their marks tell."""
    found: dict[str, int] = {}
    for rank in folder.ranks_with_history() if gpu is not None else ():
        with suppress(RecordError):  # damaged marks end the explanation of their own rank
            _, driver = read_marks(folder.memory_marks(rank))
            if driver.on(driver.device).gpu not in (None, gpu):
                found[driver.pid] = rank
    return found


def _until_us(snapshot: Snapshot, measured: MeasuredTrace) -> Sequence[float]:
    """Return when the event behind each event happened, in microseconds of the host's clock."""
    begins = measured.seconds or [0.0] * len(measured.trace.events)
    return [snapshot.entries[0].time_us + 1e6 * end for end in (*begins[1:], inf)]


def _out_of_memory(
    measured: MeasuredTrace, snapshot: Snapshot, device: Device, allocator: RecordingAllocator
) -> OutOfMemory | None:
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
    return OutOfMemory(measured.failed, part, holes, moment, tree, last)
