"""Time of one step by kind of work: as torch's profiler measured it, and as the clocks of the prediction have it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from memlab.analyse.explain.explained import traces_of
from memlab.analyse.explain.explained_run import measure_again
from memlab.core.basis import BOUND, CALIBRATED, EXACT, Basis
from memlab.core.config import Config
from memlab.core.errors import RecordError, ShadowError
from memlab.core.grouping import grouped
from memlab.core.record import PREDICTED, Record
from memlab.meters.options import PROFILER
from memlab.prediction.not_predicted import unpredictable
from memlab.prediction.time.calibrate import Calibration, calibrations_of
from memlab.prediction.time.clocks import LOWER_BOUND, has_clocks
from memlab.prediction.time.step_intervals import busy_seconds, step_intervals
from memlab.prediction.time.step_time import OWN_PYTHON
from memlab.prediction.time.work_kinds import COMMUNICATION, COPIES, KINDS, item_kinds, kernel_kind
from memlab.runs.folder import RunFolder
from memlab.runs.operator_profile import PROFILED_RANK, OperatorProfile, OperatorTime, read_operators
from memlab.simulator.trace.events import of_kinds
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import Collective, Copy, KernelLaunch


@dataclass(frozen=True)
class KindTime:
    """Time of one kind of work in a step, summed over all streams, and the number of kernels, collectives or copies."""

    seconds: float
    count: float


@dataclass(frozen=True)
class StepByKind:
    """One step of one rank. ``kinds``: without the kinds that do not occur, in the order of :data:`KINDS`.

    ``busy_seconds``: in which the device worked on anything. ``on``: what the times are of, ``device`` or ``host`` (a
    run without a GPU). ``basis``: how the times are known.
    """

    kinds: dict[str, KindTime]
    busy_seconds: float
    step_seconds: float
    on: str = "device"
    basis: Basis = EXACT

    @property
    def total(self) -> KindTime:
        return _sum(self.kinds.values())


@dataclass(frozen=True)
class TimeComparison:
    """``usual_seconds``: the median of the run's own measured steps, which no profiler slowed; ``None`` if there are
    none. ``predicted``: ``None`` if the step cannot be predicted; then ``reason`` says why."""

    profiled: StepByKind | None
    usual_seconds: float | None
    predicted: StepByKind | None
    reason: str = ""

    @property
    def measured_seconds(self) -> float | None:
        """A measured step. The profiler slows the host, so a step without it is taken if there is one."""
        return self.usual_seconds or (None if self.profiled is None else self.profiled.step_seconds)


def compare(folder: RunFolder, predicted: RunFolder | None = None) -> TimeComparison:
    """Compare the profiled steps of a run with their prediction, or show the prediction of a predicted run.

    ``predicted``: the run folder of the prediction. Without it, memlab predicts the step of its own training; it does
    not run a command again. Raises :class:`RecordError` if a measured run was not profiled.
    """
    record = folder.read_record()
    if record.source == PREDICTED:
        if predicted is not None:
            raise RecordError(f"{folder}: a prediction. Name the run that was measured first, then its prediction.")
        return TimeComparison(None, None, *_predicted(folder, record))
    path = folder.operators_file(PROFILED_RANK)
    if not path.exists():
        raise RecordError(
            f"{folder}: no steps were profiled{_why_not(record)}. "
            f"{measure_again(record, '--profile', 'measure.profile=true')}"
        )
    found = profiled(read_operators(path))
    usual = record.summary.get("step_seconds")
    if predicted is not None:
        other = predicted.read_record()
        if other.source != PREDICTED:
            raise RecordError(f"{predicted}: measured. --time compares a measured run with a prediction.")
        return TimeComparison(found, usual, *_predicted(predicted, other))
    return TimeComparison(found, usual, *_predicted(folder, record))


def _why_not(record: Record) -> str:
    """Return the failure that a rank of a command noted; empty if there is none."""
    failures = [failure for rank in record.ranks for failure in (rank["attached"] or {}).get("meter_errors", ())]
    return next((f" ({failure})" for failure in failures if failure.startswith(PROFILER)), "")


def profiled(profile: OperatorProfile) -> StepByKind:
    """Return the mean profiled step. Without work on a device, the times are those of the operators on the host."""
    rows = profile.on_device or profile.operators
    kinds = [(profiled_kind(row), KindTime(row.seconds, row.calls)) for row in rows]
    step = sum(profile.step_seconds) / max(len(profile.step_seconds), 1)
    on = "device" if profile.on_device else "host"
    return StepByKind(_by_kind(kinds), profile.busy_seconds, step, on)


def profiled_kind(row: OperatorTime) -> str:
    """Return the kind of a row of a profile, by the rules of the prediction."""
    if row.kernel.startswith("nccl") or row.operator.startswith(("c10d::", "nccl:", "gloo:", "record_param_comms")):
        return COMMUNICATION
    if row.kernel.startswith(("Memcpy HtoD", "Memcpy DtoH")):
        return COPIES
    return kernel_kind(row.operator, row.phase)


def predicted_step(config: Config, trace: Trace) -> StepByKind:
    """Return the step of one rank by the clocks. The hardware entry must have the speeds for a step time."""
    calibration = calibrations_of(config).step
    costs = LOWER_BOUND if calibration is None else calibration.costs
    found = step_intervals(config, trace.work, costs)
    kinds = item_kinds(trace)
    counts = Counter(kinds[index] for index, _ in of_kinds(trace.work, KernelLaunch, Copy, Collective))
    seconds: defaultdict[str, float] = defaultdict(float)
    for intervals in found.streams.values():
        for each in intervals:
            seconds[kinds[each.item]] += each.seconds
    busy = busy_seconds(each for intervals in found.streams.values() for each in intervals)
    by_kind = _by_kind((kind, KindTime(seconds[kind], count)) for kind, count in counts.items())
    return StepByKind(by_kind, busy, found.seconds, basis=_basis(config, calibration))


def _basis(config: Config, calibration: Calibration | None) -> Basis:
    if calibration is None:
        return Basis(BOUND, reason=f"no calibration for {config.hardware.gpu}")
    if config.is_command:
        return Basis(CALIBRATED, reason=OWN_PYTHON)
    return Basis(CALIBRATED, calibration.error["p90"])


def _predicted(folder: RunFolder, record: Record) -> tuple[StepByKind | None, str]:
    """Return the predicted step of rank 0, or why there is none."""
    config = record.config
    if record.command and record.source != PREDICTED:
        return None, "memlab does not run a command again: name the folder of its prediction"
    if reasons := unpredictable(config):
        return None, "; ".join(reasons)
    try:
        trace = traces_of(folder, record).get(PROFILED_RANK)
    except ShadowError as error:
        return None, str(error)
    if trace is None:
        return None, f"the trace of rank {PROFILED_RANK} is gone: predict again"
    if not has_clocks(config, [trace]):
        return None, f"the speeds of {config.hardware.gpu or 'this GPU'}, or the work of the step, are not known"
    return predicted_step(config, trace), ""


def _by_kind(times: Iterable[tuple[str, KindTime]]) -> dict[str, KindTime]:
    members = grouped(times, itemgetter(0))
    return {kind: _sum(time for _, time in members[kind]) for kind in sorted(members, key=KINDS.index)}


def _sum(times: Iterable[KindTime]) -> KindTime:
    found = list(times)
    return KindTime(sum(time.seconds for time in found), sum(time.count for time in found))
