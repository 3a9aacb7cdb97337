"""A run folder, explained: the ranks whose memory history is known, and why the others are left out."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from memlab.analyse.explain.explained import Explained, doubts, explain_prediction, explain_ranks, fullest, traces_of
from memlab.analyse.explain.recorded_ranks import NO_HISTORY, RecordedRanks
from memlab.core.errors import RecordError, ShadowError
from memlab.core.grouping import grouped
from memlab.core.record import OUT_OF_MEMORY, PREDICTED, Record
from memlab.runs.folder import RunFolder

NAMED = 8
"""Most ranks that a line names."""


@dataclass(frozen=True)
class ExplainedRun:
    """``left_out``: rank -> why it is not explained. ``doubts``: why the ranks may not be those of the record.
    ``wanted``: the rank that is shown; ``None``: the fullest."""

    folder: RunFolder
    record: Record
    ranks: Sequence[Explained]
    left_out: Mapping[int, str] = field(default_factory=dict)
    doubts: Sequence[str] = ()
    wanted: int | None = None

    @property
    def shown(self) -> Explained:
        """The rank that is shown."""
        if self.wanted is None:
            return fullest(self.ranks)
        return next(rank for rank in self.ranks if rank.rank == self.wanted)

    def need_history(self) -> None:
        """Raise :class:`RecordError`, with what to do, if nothing is known but what was held when memory ran out."""
        if not self.shown.has_history:
            raise RecordError(
                f"{self.folder}: memory ran out, and no history was recorded before: memlab explain says what was held "
                f"then, without options that need a history.{_advice(self.record)}"
            )

    @property
    def advice(self) -> str:
        """Say how a measured run gets a history, which has the lines of code."""
        return _advice(self.record).strip()

    @property
    def problems(self) -> list[str]:
        """Return a line for each reason why ranks are left out, or may not be those of the record."""
        reasons = grouped(self.left_out, self.left_out.__getitem__)
        left_out = [f"{_named(ranks)} left out: {reason}." for reason, ranks in reasons.items()]
        return [f"{self.folder}: {line}" for line in (*left_out, *self.doubts)]


def explain(folder: RunFolder, wanted: int | None = None) -> ExplainedRun:
    """Explain the ranks whose history is known: recorded on a GPU, or predicted. ``wanted``: the rank that is shown.

    Raises :class:`RecordError`, with what to do, if no rank can be explained, or not the wanted one.
    """
    record = folder.read_record()
    functions = _predicted(folder, record) if record.source == PREDICTED else _recorded(folder, record)
    try:
        ranks, left_out = explain_ranks(functions)
    except RecordError as error:
        reasons = _short(str(error), folder) or NO_HISTORY
        raise RecordError(f"{folder}: {reasons}.{_ended(record)}{_advice(record)}") from error
    if growth := record.command.get("growth"):
        ranks = [replace(rank, growth=growth) if rank.rank == growth["rank"] else rank for rank in ranks]
    left_out = {rank: _short(reason, folder) for rank, reason in left_out.items()}
    if wanted is not None and wanted not in (known := [rank.rank for rank in ranks]):
        others = ", ".join(map(str, known))
        raise RecordError(f"{folder}: rank {wanted} has no memory history. Choose one of: {others}.")
    doubtful = list(doubts(record, ranks)) if record.source == PREDICTED else []
    return ExplainedRun(folder, record, ranks, left_out, doubtful, wanted)


def _short(reason: str, folder: RunFolder) -> str:
    """Return a reason with the files of the folder by their names alone."""
    return reason.replace(f"{folder}/", "")


def _ended(record: Record) -> str:
    """Say how a run ended that has no result, which may be why it has no history."""
    if record.status in ("ok", *OUT_OF_MEMORY):
        return ""
    return f" The run ended as {record.status}: {(record.reason or 'no reason is known').rstrip('.')}."


def _advice(record: Record) -> str:
    """Say how a measured run gets a memory history."""
    if record.source == PREDICTED:
        return ""
    if record.ranks and all(rank["device"] == "cpu" for rank in record.ranks):
        return " No rank used a GPU, whose memory alone is recorded: explain a prediction of this run."
    options = "--explain --explain-oom" if record.status == "gpu_oom" else "--explain"
    return f" {measure_again(record, options, 'measure.snapshot=true')}"


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:NAMED]))
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f"rank {shown} is" if len(ranks) == 1 else f"ranks {shown}{more} are"


def _predicted(folder: RunFolder, record: Record) -> dict[int, Callable[[], Explained]]:
    """Return rank -> function that explains it. Raises :class:`RecordError` for a prediction without an answer."""
    if ended := _ended(record):
        raise RecordError(f"{folder}: nothing was predicted that could be explained.{ended}")
    try:
        traces = traces_of(folder, record)
    except ShadowError as error:
        raise RecordError(f"{folder}: this prediction cannot be made again ({error})") from error
    return {rank: partial(explain_prediction, record.config, trace) for rank, trace in traces.items()}


def _recorded(folder: RunFolder, record: Record) -> dict[int, Callable[[], Explained]]:
    """Return rank -> function that explains it, or raises :class:`RecordError`."""
    ranks = RecordedRanks(folder, record.ranks)
    return {rank: partial(ranks.explain, rank) for rank in ranks.numbers}


def measure_again(record: Record, option: str, word: str) -> str:
    """Say how to measure a run again. ``option``: of ``memlab measure``; ``word``: for memlab's own training."""
    if not record.command:
        return f"Measure again with {word}, or explain a prediction of it."
    return f"Measure again: memlab measure {option} -- {shlex.join(record.command['words'])}"
