"""Training commands of people's own: measured runs of ``memlab measure``, predicted again from the same words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memlab.core.record import Record
from memlab.core.sizes import MIB
from memlab.planner.user_command import predict_command
from memlab.runs.folder import RunFolder
from tools.accuracy.errors import Compared, errors_between, versions_of
from tools.accuracy.repredict import JUDGED

PEAKS = {"allocated": "peak_allocated_bytes", "reserved": "peak_reserved_bytes"}
"""Quantities that are compared by rank and by phase -> the record's key."""

PHASE_MINIMUM_BYTES = MIB
"""A phase with a lower peak than this is not compared: it holds a few scalars."""


@dataclass(frozen=True)
class JudgedCommand(Compared):
    """One measured command beside its prediction.

    ``errors``: of the highest rank. ``ranks``: rank -> errors. ``phases``: phase -> errors of the highest rank's peaks.
    ``first``: the same command, by the earliest prediction that is known; ``None``: this one is the first.
    ``predictor``: versions of the libraries that the predicted script used.
    """

    name: str
    words: tuple[str, ...]
    gpus: int
    reason: str | None  # of the prediction's status
    ranks: dict[int, dict[str, float]]
    phases: dict[str, dict[str, float]]
    predictor: dict[str, str]
    first: "JudgedCommand | None" = None


@dataclass(frozen=True)
class MeasuredCommand:
    """A measured command, and the prediction of the same words that was made first, if its record was kept."""

    sweep: str
    name: str
    record: Record
    first: Record | None

    def predicted_again(self, folder: RunFolder) -> Record:
        """Predict the command again, on the GPUs that measured it."""
        return predict_command(self.record.command["words"], self.record.config.hardware, folder, None)

    def judged(self, predicted: Record) -> JudgedCommand:
        """Compare the measurement with a prediction, and with the first one."""
        measured = self.record
        both_ran = measured.status == predicted.status == "ok"
        return JudgedCommand(
            sweep=self.sweep,
            name=self.name,
            words=tuple(measured.command["words"]),
            gpus=measured.config.hardware.world_size,
            measured=measured.status,
            predicted=predicted.status,
            reason=predicted.reason,
            verdict=predicted.summary.get("verdict", ""),
            measured_bytes=_peaks(measured.ranks),
            errors=errors_between(_peaks(measured.ranks), _peaks(predicted.ranks)) if both_ran else {},
            ranks=_errors_by(_ranks(measured), _ranks(predicted)) if both_ran else {},
            phases=_errors_by(_phases(measured), _phases(predicted)) if both_ran else {},
            versions=versions_of(measured),
            predictor=versions_of(predicted),
            first=None if self.first is None else replace(self, first=None).judged(self.first),
        )


def measured_commands(records: Sequence[tuple[str, str, Record]]) -> Iterator[MeasuredCommand]:
    """Yield each measured command of ``records``: (sweep, name, record).

    A predicted record of the same words and GPUs among ``records`` is the first prediction of that command.
    """
    first = {_key(record): record for _, _, record in records if record.command and record.source == "predicted"}
    for sweep, name, record in records:
        if record.command and record.source == "measured" and record.status in JUDGED:
            yield MeasuredCommand(sweep, name, record, first.get(_key(record)))


def _key(record: Record) -> tuple[Any, ...]:
    return (*record.command["words"], record.config.hardware.gpu, record.config.hardware.gpus)


def _ranks(record: Record) -> dict[int, dict[str, int | None]]:
    return {rank["rank"]: {name: rank[key] for name, key in PEAKS.items()} for rank in record.ranks}


def _phases(record: Record) -> dict[str, dict[str, int]]:
    names = dict.fromkeys(phase for rank in record.ranks for phase in rank["phases"])
    found = {name: _peaks([rank["phases"][name] for rank in record.ranks if name in rank["phases"]]) for name in names}
    return {name: peaks for name, peaks in found.items() if peaks["allocated"] >= PHASE_MINIMUM_BYTES}


def _peaks(figures: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the highest peaks of ranks, or of one phase of each rank."""
    return {name: max((each[key] or 0 for each in figures), default=0) for name, key in PEAKS.items()}


def _errors_by(measured: Mapping[Any, Any], predicted: Mapping[Any, Any]) -> dict[Any, dict[str, float]]:
    return {name: errors_between(measured[name], predicted[name]) for name in measured if name in predicted}
