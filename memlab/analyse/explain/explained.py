"""A rank, explained: its memory at the peak, and in each phase; a predicted one from the trace of its shadow run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from memlab.analyse.explain.accounting import UNEXPLAINED, Share, used
from memlab.analyse.explain.out_of_memory import OutOfMemoryExplained, failed_replay
from memlab.analyse.explain.outside import Device, ModelledDevice
from memlab.analyse.explain.phases import PhaseRun, highest_runs, parts_of
from memlab.analyse.explain.snapshot_trace import BEFORE, OTHER
from memlab.core.config import Config
from memlab.core.errors import RecordError
from memlab.core.record import PREDICTED, Record
from memlab.core.record_schema import GrowthOfRun
from memlab.prediction.fit_outside import sizes_from
from memlab.prediction.memory.ledger import Moment, moments
from memlab.prediction.memory.outside import outside_parts
from memlab.prediction.memory.rank_replays import RankReplays
from memlab.prediction.memory.rank_results import gpu_memory
from memlab.prediction.run_command import traces_in
from memlab.prediction.time.calibrate import calibrations_of
from memlab.prediction.traces.choose_traces import traces_in_launch
from memlab.prediction.traces.store import code_digest
from memlab.runs.folder import RunFolder
from memlab.simulator.allocator import RecordingAllocator
from memlab.simulator.trace.events import Alloc, BeginPoint, of_kinds
from memlab.simulator.trace.trace_format import Trace, Traces, replayed


@dataclass(frozen=True)
class History:
    """What happened to a rank's memory, event by event, and what a replay needs.

    ``recorder``: returns a new allocator with these ``settings``, which notes what it does. ``seconds``: when each
    event of the trace happened, from the first recorded one on; ``None`` if no clock is known.
    """

    trace: Trace
    settings: str
    recorder: Callable[[], RecordingAllocator]
    seconds: Sequence[float] | None = None

    def sizes(self) -> tuple[list[int], list[int]]:
        """Return the allocated and the reserved bytes after each event of a replay. An out-of-memory ends it early."""
        found: tuple[list[int], list[int]] = [], []
        for allocator in replayed(self.trace, self.recorder()):
            found[0].append(allocator.allocated)
            found[1].append(allocator.reserved)
        return found


class Position(NamedTuple):
    """Place in a run. ``step``: the optimizer step, from 1; ``None`` outside the steps. ``line``: of the user's
    script; ``None`` if it is not known."""

    phase: str
    step: int | None
    line: str | None


@dataclass(frozen=True)
class Explained:
    """One rank. ``source``: measured or predicted. ``peak``: of allocated memory, and ``at``: where it is in the run.
    ``phases``: in the order of the run. ``most_reserved``: the first moment at which the allocator holds the most, and
    where it is; ``None`` without a history. ``oom``: of a rank that ran out of memory.

    ``has_history``: ``False`` if nothing is known but what was held when memory ran out. The ``peak`` is this moment
    then, and the events of the ``history`` request these blocks one after the other. ``growth``: memory that grows from
    step to step, as the meters of a command saw it.
    """

    source: str
    history: History
    device: Device
    peak: Moment
    at: Position
    phases: tuple[PhaseRun, ...]
    oom: OutOfMemoryExplained | None = None
    has_history: bool = True
    most_reserved: tuple[Moment, Position] | None = None
    growth: GrowthOfRun | None = None

    @property
    def rank(self) -> int:
        return self.history.trace.rank

    def used(self, moment: Moment) -> Share:
        """Return the memory of the device at a moment, as a tree."""
        return used(moment, self.device.outside(moment.event), self.device.driver(moment.event))

    def unexplained(self, moment: Moment) -> int:
        """Return the bytes in use that have no name: beside the parts of :meth:`used`, and requests without a cause."""
        beside = sum(abs(part.nbytes) for part in self.used(moment).parts if part.name == UNEXPLAINED)
        return beside + sum(held.nbytes for held in moment.holdings if held.site.kind in (BEFORE, OTHER))


def fullest(ranks: Sequence[Explained]) -> Explained:
    """Return the rank with the highest peak of allocated memory: of those that ran out of memory, if there are any."""
    return max(ranks, key=lambda rank: (rank.oom is not None, rank.peak.allocated))


def explain_ranks(explained: Mapping[int, Callable[[], Explained]]) -> tuple[list[Explained], dict[int, str]]:
    """Explain each rank for itself: return those that can be explained, and rank -> reason of the others.

    ``explained``: rank -> function that explains it, or raises :class:`RecordError`. Raises :class:`RecordError`, with
    all reasons, if no rank can be explained.
    """
    ranks: list[Explained] = []
    left_out: dict[int, str] = {}
    for rank, explain in explained.items():
        try:
            ranks.append(explain())
        except RecordError as error:
            left_out[rank] = str(error).rstrip(".")
    if not ranks:
        raise RecordError("; ".join(dict.fromkeys(left_out.values())))
    return ranks, left_out


def explain_history(
    source: str, history: History, device: Device, begin: int = 0, oom: OutOfMemoryExplained | None = None
) -> Explained:
    """Find the peak, which is the first event from ``begin`` on after which most is allocated, and explain it.

    ``oom``: of a recorded history; that of a prediction is found in the replay. Raises :class:`RecordError` if nothing
    was allocated.
    """
    trace = history.trace
    allocated, reserved = history.sizes()
    failed = len(allocated)
    if not any(allocated):
        raise RecordError(f"rank {trace.rank} got no memory on the GPU: {_why_nothing(trace, failed)}")
    counted = range(begin if begin < len(allocated) else 0, len(allocated))
    peak, most = max(counted, key=allocated.__getitem__), max(counted, key=reserved.__getitem__)
    runs = highest_runs(parts_of(trace, len(allocated)), allocated)
    again = history.recorder()
    found = moments(trace, {peak, most, failed, *chain.from_iterable(run.events for run in runs)}, again)
    if failed in found:
        ran_out = found[failed]
        tree = used(ran_out, device.outside(ran_out.event), device.driver(ran_out.event))
        oom = failed_replay(trace, reserved, ran_out, tree, again)
    phases = tuple(PhaseRun(run.part, run.times, *(found[event] for event in run.events)) for run in runs)
    most_reserved = found[most], _position(trace, most)
    at = _position(trace, peak)
    return Explained(source, history, device, found[peak], at, phases, oom, most_reserved=most_reserved)


def _why_nothing(trace: Trace, failed: int) -> str:
    """Say why nothing was allocated. ``failed``: the event that found no room; behind the last one if all did."""
    if failed == len(trace.events):
        return "there is nothing to explain"
    request = trace.events[failed]
    assert isinstance(request, Alloc)
    return f"its first request, {request.nbytes:,} bytes, finds no room"


def _position(trace: Trace, event: int) -> Position:
    """Return where in the run an event is."""
    begins = [phase for begin, phase in trace.phase_begins.items() if begin <= event]
    phase = begins[-1] if begins else ""
    piece = trace.pieces[len(begins) - 1] if 0 < len(begins) <= len(trace.pieces) else None
    request = trace.events[event]
    line = trace.sites[request.site].user_line if isinstance(request, Alloc) else ""
    return Position(phase, piece.shown_step if piece else None, line or (piece.where if piece else None))


def explain_prediction(config: Config, trace: Trace, capacity: int | None = None) -> Explained:
    """Explain a rank on simulated GPUs. ``capacity``: the most that the allocator may reserve, in bytes; ``None``: as
    on the GPU of the hardware entry. The peak is one of the steps, as in a record."""
    limit = gpu_memory(config, [trace]).capacity if capacity is None else capacity
    replays = RankReplays(config, [trace], limit, calibrations_of(config).host)
    history = History(replays.trace, config.allocator.conf, replays.recorder)  # with release delays, which are likely
    begin = next((index for index, _ in of_kinds(replays.trace.events, BeginPoint)), 0)
    sizes = sizes_from(config.predict.outside)
    device = ModelledDevice(outside_parts(replays.trace, sizes), sizes.provenance)
    return explain_history(PREDICTED, history, device, begin)


def doubts(record: Record, ranks: Sequence[Explained] = ()) -> Iterator[str]:
    """Yield why the explained ``ranks`` may not be those of the record of a prediction, with what to do.

    Only a command's traces lie beside its record: they are made again for memlab's own training, by the code that
    explains them. The same trace replayed by the same code has the same peak, to the byte.
    """
    again, explained, recorded = "Predict it again.", "what this code predicts is explained", {}
    if record.command:
        again, explained = "Predict the command again.", "its traces are explained as they are"
        recorded = {result["rank"]: result["peak_allocated_bytes"] for result in record.ranks}
    if record.environment.get("predictor") != code_digest():
        yield f"other code of memlab made this prediction; {explained}. {again}"
    for rank in ranks:
        known = recorded.get(rank.rank)
        if known not in (None, rank.peak.allocated):
            yield (
                f"the trace of rank {rank.rank} has a peak of {rank.peak.allocated:,} bytes of allocated memory, and "
                f"the record has one of {known:,}: they are of two predictions. {again}"
            )


def traces_of(folder: RunFolder, record: Record) -> Traces:
    """Return the traces of a prediction, in the order of the ranks. A command's are in its folder, those of memlab's
    own training in the cache.

    Raises :class:`RecordError` if a command's are gone, :class:`ShadowError` if memlab's own training cannot be traced
    again.
    """
    found = traces_in(folder.path) if record.command else traces_in_launch([folder.read_plan()])[0]
    if not found:
        raise RecordError(f"{folder}: the traces of this prediction are gone. Predict the command again.")
    return dict(sorted(found.items()))
