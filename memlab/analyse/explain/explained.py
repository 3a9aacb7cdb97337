"""Ranks of a run folder, explained: their memory at the peak, and in each phase."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf

from memlab.analyse.explain.accounting import UNEXPLAINED, Share, used
from memlab.analyse.explain.marks import read_marks
from memlab.analyse.explain.out_of_memory import OutOfMemory, last_events
from memlab.analyse.explain.outside import Outside, handles_made, modelled
from memlab.analyse.explain.phases import PhaseRun, allocated_after, highest_runs, parts_of
from memlab.analyse.explain.snapshot import Snapshot, read_snapshot
from memlab.analyse.explain.snapshot_trace import BEFORE, OTHER, MeasuredTrace, trace_of
from memlab.core.config import Config
from memlab.core.errors import RecordError
from memlab.core.record import PREDICTED, Record
from memlab.predict.allocator import RecordingAllocator, parse
from memlab.predict.memory.gpu_memory import gpu_memory
from memlab.predict.memory.ledger import Moment, moments
from memlab.predict.memory.rank_replays import RankReplays
from memlab.predict.time.calibration_choice import resolve
from memlab.predict.trace.choose_traces import traces_in_launch
from memlab.predict.trace.events import Alloc, BeginPhase
from memlab.predict.trace.run_command import traces_in
from memlab.predict.trace.shadow_process import ShadowError
from memlab.predict.trace.trace_format import Trace
from memlab.runs.folder import RunFolder


@dataclass(frozen=True)
class Explained:
    """One rank. ``phases``: in the order of the run.

    ``outside``: returns the memory of the device outside the allocator after an event. ``driver``: returns the driver's
    figure after an event; ``None`` in a prediction. ``trace``: what it was computed from; ``recorder``: returns a new
    allocator that notes what it does, for a replay of the trace with the allocator's ``settings``. ``seconds``: when
    each event of the trace happened, from the first recorded one on; ``None`` if no clock is known. ``oom``: of a
    measured rank that ran out of memory.
    """

    rank: int
    source: str  # measured or predicted
    phase: str  # of the peak
    where: str | None  # line of the user's script at the beginning of that part of the run
    step: int | None
    peak: Moment
    phases: tuple[PhaseRun, ...]
    outside: Callable[[int], tuple[Share, ...]]
    driver: Callable[[int], int] | None
    trace: Trace
    recorder: Callable[[], RecordingAllocator]
    settings: str
    seconds: Sequence[float] | None = None
    outside_changes: tuple[int, ...] = (0,)  # events from which what is outside the allocator can differ from before
    oom: OutOfMemory | None = None

    def used(self, moment: Moment) -> Share:
        """Return the memory of the device at a moment, as a tree."""
        driver = None if self.driver is None else self.driver(moment.event)
        return used(moment, self.outside(moment.event), driver)

    def unexplained(self, moment: Moment) -> int:
        """Return the bytes in use that have no name: beside the parts of :meth:`used`, and requests without a cause."""
        beside = sum(abs(part.nbytes) for part in self.used(moment).parts if part.name == UNEXPLAINED)
        return beside + sum(held.nbytes for held in moment.holdings if held.site.kind in (BEFORE, OTHER))


def fullest(ranks: Sequence[Explained]) -> Explained:
    """Return the rank with the highest peak of allocated memory: of those that ran out of memory, if there are any."""
    return max(ranks, key=lambda rank: (rank.oom is not None, rank.peak.allocated))


def explain(folder: RunFolder) -> list[Explained]:
    """Explain the ranks whose history is known: recorded on a GPU, or predicted.

    Raises :class:`RecordError` if none is, with what to do.
    """
    record = folder.read_record()
    if record.source == PREDICTED:
        try:
            traces = traces_of(folder, record)
        except ShadowError as error:
            raise RecordError(f"{folder}: this prediction cannot be made again ({error})") from error
        return [explain_prediction(record.config, trace) for trace in traces.values()]
    found = [_measured(folder, rank, record) for rank in record.ranks if _has_history(folder, rank)]
    if not found:
        raise RecordError(
            f"{folder}: no memory history is in this folder. Measure again with measure.snapshot=true (a command: with "
            "memlab measure --explain -- COMMAND), or explain a prediction of it."
        )
    return found


def _has_history(folder: RunFolder, rank: Mapping) -> bool:
    return folder.snapshot_file(rank["rank"]).exists() and folder.memory_marks(rank["rank"]).exists()


def _measured(folder: RunFolder, result: Mapping, record: Record) -> Explained:
    rank = int(result["rank"])
    snapshot = read_snapshot(folder.snapshot_file(rank))
    marks, readings = read_marks(folder.memory_marks(rank))
    measured = trace_of(snapshot, rank, len(record.ranks), marks)
    if not (snapshot.entries and measured.trace.events):
        raise RecordError(f"{folder.snapshot_file(rank)}: the history is empty: nothing was allocated on the GPU.")
    settings = str(snapshot.settings.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    recorder = partial(RecordingAllocator, parse(settings), addresses=measured.segments, before=measured.before)

    outside = Outside(readings, handles_made(snapshot.entries))

    ends = [*(measured.seconds or [0.0] * len(measured.trace.events))[1:], inf]

    def time_us(event: int) -> float:  # until the next event: at the end of a phase, the reading comes after the event
        return snapshot.entries[0].time_us + 1e6 * ends[event]

    def outside_after(event: int) -> tuple[Share, ...]:
        return outside.shares(time_us(event))

    def driver_after(event: int) -> int:
        return measured.reserved[event] + outside.nearest(time_us(event))

    times = list(map(time_us, range(len(measured.trace.events))))
    around = {index for time in outside.changes() for index in (bisect_left(times, time), bisect_right(times, time))}
    explained = _explained(measured.trace, record.source, None, recorder, outside_after, settings)
    oom = _out_of_memory(measured, snapshot, recorder())
    return replace(
        explained,
        driver=driver_after,
        seconds=measured.seconds,
        oom=oom,
        outside_changes=tuple(sorted({0, *around} - {len(times)})),
    )


def _out_of_memory(measured: MeasuredTrace, snapshot: Snapshot, allocator: RecordingAllocator) -> OutOfMemory | None:
    if measured.failed is None:
        return None
    end = len(measured.trace.events) - 1
    part = parts_of(measured.trace, end + 1)[-1]
    replayed = moments(measured.trace, {end}, allocator)[end]
    slack = snapshot.slack  # a replay comes near to it where the history begins in expandable segments
    allocated = replayed.requested + slack.rounding
    moment = replace(replayed, allocated=allocated, reserved=snapshot.reserved, slack=slack)
    holes = tuple(sorted(snapshot.free, reverse=True))
    return OutOfMemory(measured.failed, part, holes, moment, last_events(measured, measured.failed))


def explain_prediction(config: Config, trace: Trace, capacity: int | None = None) -> Explained:
    """Explain a rank on simulated GPUs. ``capacity``: the most that the allocator may reserve, in bytes; ``None``: as
    on the GPU of the hardware entry."""
    gpu = gpu_memory(config)
    limit = gpu.capacity if capacity is None else capacity
    ranks = RankReplays(config, [trace], limit, resolve(config).host, with_curve=True)
    peak = ranks.likely[0].peak_event  # of the trace with release delays, which lacks the host's waits
    outside = modelled(config.hardware.gpus)
    return _explained(ranks.trace, PREDICTED, peak, ranks.recorder, lambda event: outside, config.allocator.conf)


def traces_of(folder: RunFolder, record: Record) -> Mapping[int, Trace]:
    """Return the traces of a prediction, in the order of the ranks. A command's are in its folder, those of memlab's
    own training in the cache.

    Raises :class:`RecordError` if a command's are gone, :class:`ShadowError` if memlab's own training cannot be traced
    again.
    """
    found = traces_in_launch([folder.read_plan()])[0] if record.command is None else traces_in(folder.path)
    if not found:
        raise RecordError(f"{folder}: the traces of this prediction are gone. Predict the command again.")
    return dict(sorted(found.items()))


def _explained(
    trace: Trace,
    source: str,
    peak: int | None,
    recorder: Callable[[], RecordingAllocator],
    outside: Callable[[int], tuple[Share, ...]],
    settings: str,
) -> Explained:
    """``peak``: the event of the run's peak; ``None``: the first one after which most is allocated.

    Raises :class:`RecordError` if nothing was allocated.
    """
    allocated = allocated_after(trace, recorder())
    if not any(allocated):
        raise RecordError(f"Rank {trace.rank} got no memory on the GPU: there is nothing to explain.")
    peak = max(range(len(allocated)), key=allocated.__getitem__) if peak is None else peak
    runs = highest_runs(parts_of(trace, len(allocated)), allocated)
    found = moments(trace, {peak, *chain.from_iterable(run.events for run in runs)}, recorder())
    number = _piece_at(trace, peak)
    piece = trace.pieces[number] if 0 <= number < len(trace.pieces) else None
    begins = [event for event in trace.events[: peak + 1] if isinstance(event, BeginPhase)]
    request = trace.events[peak]
    user_line = trace.sites[request.site].user_line if isinstance(request, Alloc) else ""
    return Explained(
        rank=trace.rank,
        source=source,
        phase=trace.phases[begins[-1].phase] if begins else "",
        where=user_line or (piece.where if piece else None),
        step=piece.step if piece else None,
        peak=found[peak],
        phases=tuple(PhaseRun.of(run, found) for run in runs),
        outside=outside,
        driver=None,
        trace=trace,
        recorder=recorder,
        settings=settings,
    )


def _piece_at(trace: Trace, event: int) -> int:
    """Return the number of the piece that an event belongs to; -1 before the first."""
    return sum(isinstance(each, BeginPhase) for each in trace.events[: event + 1]) - 1
