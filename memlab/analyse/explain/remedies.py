"""Remedies of an explained run: single changes, each predicted, with the blocks of memory that are gone then."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from memlab.analyse.explain import accounting
from memlab.analyse.explain.accounting import ComparedPart
from memlab.analyse.explain.explained import Explained, explain_prediction, explain_ranks, fullest
from memlab.core.record import PREDICTED, Record
from memlab.core.sizes import UNLIMITED
from memlab.planner.changed_runs import ChangedRuns, PredictedRun
from memlab.planner.changes import Change
from memlab.prediction.memory.ledger import SLACK, by_kind
from memlab.prediction.memory.rank_results import gpu_memory, needs
from memlab.prediction.time.calibrate import calibrations_of
from memlab.prediction.time.step_time import StepTime, predict_step_time


@dataclass(frozen=True)
class RunPeaks:
    """Peaks in bytes, each of the highest rank. ``used``: reserved memory, and what is outside the allocator."""

    allocated: int
    reserved: int
    used: int


@dataclass(frozen=True)
class NeededPeaks(RunPeaks):
    """What a run needs on a GPU of any size: bytes of the rank that needs the most.

    ``host``: of the process. ``verdict``: on the GPU of the hardware entry. ``step``: ``None`` if the time is not
    known. ``rank``: the fullest rank, explained.
    """

    host: int
    verdict: str
    step: StepTime | None
    rank: Explained


@dataclass(frozen=True)
class Remedy:
    """One change. ``needs``: of the run with it, or the reason why it could not be predicted. ``blocks``: what the
    program holds at the peak, by kind and module, in the run as it is and in the changed one."""

    change: str
    price: str
    needs: NeededPeaks | str
    blocks: ComparedPart | None = None


@dataclass(frozen=True)
class Remedies:
    """``base``: the run as it is, by its prediction. ``measured``: if it was measured and did not run out of memory.
    ``tried``: the change that saves the most memory first, those without a prediction last. ``not_tried``: further
    changes that could save memory."""

    base: NeededPeaks
    measured: RunPeaks | None
    tried: list[Remedy]
    not_tried: list[str]


def remedies(record: Record, runs: ChangedRuns, most: int) -> Remedies:
    """Predict the changes that can take the most off the predicted peak; ``most``: how many.

    The peak is the one on a GPU of any size: a run that is out of memory ends before it. Raises :class:`MemlabError` if
    the run as it is cannot be predicted.
    """
    base = needs_of(runs.base)
    chosen, others = choose(runs.changes, held_at_the_peak(base.rank), most)
    found = [_remedy(change, run, base) for change, run in zip(chosen, runs.predict(chosen), strict=True)]
    found.sort(key=lambda remedy: UNLIMITED if isinstance(remedy.needs, str) else remedy.needs.used)
    return Remedies(base, _measured(record), found, [other.told for other in others])


def choose(changes: Sequence[Change], held: Mapping[str, int], most: int) -> tuple[list[Change], list[Change]]:
    """Return the changes to predict, at most ``most``, and the others that could take something off.

    ``held``: kind -> bytes at the peak. The change that can take off the most comes first; one that can take off no
    more than a hundredth is left out.
    """
    least = 0.01 * sum(held.values())
    able = [change for change in changes if change.at_most(held) > least]
    able.sort(key=lambda change: -change.at_most(held))
    return able[:most], able[most:]


def held_at_the_peak(rank: Explained) -> dict[str, int]:
    """Return the bytes of each kind at the peak, and of the allocator's slack."""
    return {**by_kind(rank.peak.holdings), SLACK: rank.peak.slack.total}


def needs_of(run: PredictedRun) -> NeededPeaks:
    """Replay the traces of a run, without and with the limit of its GPU."""
    config, calibrations = run.config, calibrations_of(run.config)
    found = needs(config, list(run.traces.values()), calibrations.host)
    explained = {number: partial(explain_prediction, config, trace, UNLIMITED) for number, trace in run.traces.items()}
    rank = fullest(explain_ranks(explained)[0])
    step = predict_step_time(config, run.traces, calibrations.step)
    reserved = found.used - gpu_memory(config, run.traces.values()).outside
    return NeededPeaks(rank.peak.allocated, reserved, found.used, found.host, found.verdict, step, rank)


def _remedy(change: Change, run: PredictedRun | str, base: NeededPeaks) -> Remedy:
    if isinstance(run, str):
        return Remedy(change.told, change.price, run)
    changed = needs_of(run)
    kinds = [accounting.by_kind(each.rank.peak.holdings) for each in (base, changed)]
    return Remedy(change.told, change.price, changed, accounting.side_by_side(kinds))


def _measured(record: Record) -> RunPeaks | None:
    if record.source == PREDICTED or record.status != "ok":
        return None
    keys = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")
    return RunPeaks(*(max(rank[key] or 0 for rank in record.ranks) for key in keys))
