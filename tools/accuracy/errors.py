"""Accuracy of the predictions: errors of the memory quantities, and how often the verdict (runs or not) was right.

An error is ``predicted / measured - 1`` of the highest rank; it is negative where the prediction was too low.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import median
from typing import Any

from memlab.core.config import Config
from memlab.core.grouping import grouped
from memlab.core.plan import engine_key
from memlab.core.record import Record
from memlab.prediction.memory.fit_probability import kind
from memlab.runs.step_rows import highest

QUANTITIES = {
    "allocated": "peak allocated",
    "reserved": "peak reserved",
    "active": "peak active",
    "after_init": "allocated after engine init",
    "host": "host memory, peak resident",
}
"""Quantity, of the highest rank -> its words. The peaks are over the steps."""

GROUPS = (
    "model",
    "zero_stage",
    "offload",
    "checkpointing",
    "allocator",
    "precision",
    "attention",
    "adapter",
    "kernels",
)
"""Config groups that errors are broken down by, beside the number of GPUs and the launch (fresh or shared)."""

MARGIN = 0.02
"""Under-estimates by more than this share of the measurement are counted: such a point can run out of memory."""

DIGITS = 6


@dataclass(frozen=True)
class Compared:
    """A measurement beside its prediction. ``errors``: ``predicted / measured - 1``; empty unless both ended as ok.
    ``versions``: of the libraries that measured."""

    sweep: str
    measured: str  # status
    predicted: str
    verdict: str
    measured_bytes: dict[str, int]
    errors: dict[str, float]
    versions: dict[str, str]


@dataclass(frozen=True)
class Judged(Compared):
    """One measured point beside its prediction."""

    run_id: str
    engine: str  # engine key: the same for all points that differ only in shape
    choices: dict[str, str]
    gpus: int
    isolation: str
    micro: int
    tokens: int
    reserved_range: tuple[float, float] | None  # errors of the lowest and highest predicted reserved memory


def judge(sweep: str, measured: Record, predicted: Record) -> Judged:
    """Compare a measured record with its prediction; errors are empty unless both ended as ok."""
    config = measured.config
    both_ran = measured.status == predicted.status == "ok"
    return Judged(
        sweep=sweep,
        run_id=measured.run_id,
        engine=engine_key(config),
        choices={group: measured.choices.get(group, "none") for group in GROUPS},
        gpus=config.hardware.world_size,
        isolation=measured.isolation,
        micro=config.batch.micro,
        tokens=config.seq_len.tokens,
        measured=measured.status,
        predicted=predicted.status,
        verdict=predicted.summary.get("verdict", ""),
        measured_bytes={name: nbytes for name, nbytes in quantities(measured).items() if nbytes},
        errors=errors_between(quantities(measured), quantities(predicted)) if both_ran else {},
        reserved_range=_errors_of_range(measured, predicted) if both_ran else None,
        versions=versions_of(measured),
    )


def versions_of(record: Record) -> dict[str, str]:
    """Return the versions of the libraries that decide the memory of a run; empty text for one that is not there."""
    return {name: record.environment.get(name) or "" for name in ("torch", "deepspeed", "transformers")}


def errors_between(measured: Mapping[str, int | None], predicted: Mapping[str, int | None]) -> dict[str, float]:
    """Return ``predicted / measured - 1`` of each quantity that both know and that is not 0."""
    return {
        quantity: round(guess / truth - 1, DIGITS)
        for quantity, truth in measured.items()
        if truth and (guess := predicted.get(quantity))
    }


def quantities(record: Record) -> dict[str, int | None]:
    """Return each of :data:`QUANTITIES` in bytes, for the highest rank; ``None`` where the record lacks it."""
    after_init = (rank["phases"].get("engine_init", {}).get("end_allocated_bytes") for rank in record.ranks)
    return {
        "allocated": _highest(record, "peak_allocated_bytes"),
        "reserved": _highest(record, "peak_reserved_bytes"),
        "active": _highest(record, "peak_active_bytes"),
        "after_init": highest(after_init),
        "host": _highest(record, "host_peak_bytes"),
    }


def _highest(record: Record, key: str) -> int | None:
    return record.summary.get(key, {}).get("max")


def _errors_of_range(measured: Record, predicted: Record) -> tuple[float, float] | None:
    truth = _highest(measured, "peak_reserved_bytes")
    ranges = [rank["peak_reserved_range_bytes"] for rank in predicted.ranks if rank["peak_reserved_range_bytes"]]
    if not truth or not ranges:
        return None
    return tuple(round(max(end) / truth - 1, DIGITS) for end in zip(*ranges, strict=True))


# --- statistics -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Errors:
    """Errors of one quantity over ``n`` points, as shares of 1.

    ``median`` and ``percentile_90`` are of absolute errors; ``worst`` keeps its sign. ``under`` is the share of points
    that were under-estimated, ``under_by_margin`` the share under-estimated by more than :data:`MARGIN`.
    """

    n: int
    median: float
    percentile_90: float
    worst: float
    under: float
    under_by_margin: float


def errors_of(points: Sequence[Compared], quantity: str) -> Errors | None:
    """Summarise the errors of one quantity; ``None`` if no point has an error for this quantity."""
    if not (values := [point.errors[quantity] for point in points if quantity in point.errors]):
        return None
    absolute = sorted(abs(value) for value in values)
    return Errors(
        n=len(values),
        median=round(median(absolute), DIGITS),
        percentile_90=absolute[ceil(9 * len(absolute) / 10) - 1],  # nearest rank: at least 9 of 10 errors are no larger
        worst=max(values, key=abs),
        under=round(sum(value < 0 for value in values) / len(values), DIGITS),
        under_by_margin=round(sum(value < -MARGIN for value in values) / len(values), DIGITS),
    )


@dataclass(frozen=True)
class Verdicts:
    """Counts of points, and of predictions that were right about whether the point runs."""

    n: int
    right: int
    out_of_memory: int  # points whose measurement ran out of GPU memory
    edge: int  # points with the verdict "edge": whether they fit depends on what a replay cannot know


def verdicts_of(points: Sequence[Compared]) -> Verdicts:
    return Verdicts(
        n=len(points),
        right=sum((point.measured == "ok") == (point.predicted == "ok") for point in points),
        out_of_memory=sum(point.measured == "gpu_oom" for point in points),
        edge=sum(point.verdict == "edge" for point in points),
    )


def cell(point: Judged) -> tuple[str, ...]:
    """Describe a point in words: its model, group options that are not the default, number of GPUs, and isolation."""
    named = [
        option for group, option in point.choices.items() if group == "model" or option not in ("none", "sdpa", "bf16")
    ]
    return (*named, f"{point.gpus} GPU{'s' * (point.gpus > 1)}", point.isolation)


# --- the companion file -----------------------------------------------------------------------------------------------


def to_json(
    points: Sequence[Judged], commands: Sequence[Any], predictor: dict[str, str], refused: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Build docs/accuracy.json: the summary that a test checks, every point and every training command
    (:class:`tools.accuracy.commands.JudgedCommand`), and the runs that were not predicted."""
    return {
        "predictor": predictor,
        "not_predicted": dict(refused),
        "summary": summary(points),
        "points": [asdict(point) for point in sorted(points, key=lambda point: (point.sweep, point.run_id))],
        "commands": [asdict(command) for command in sorted(commands, key=lambda each: (each.sweep, each.name))],
    }


def summary(points: Sequence[Judged]) -> dict[str, Any]:
    """Summarise the errors of each quantity, and the verdicts."""
    found = {quantity: asdict(errors) for quantity in QUANTITIES if (errors := errors_of(points, quantity))}
    return {**found, "verdicts": asdict(verdicts_of(points))}


def reserved_ratios(points: Sequence[Judged]) -> dict[str, list[float]]:
    """Return ``measured / predicted`` of reserved memory, grouped by engine key.

    They are grouped because points with the same engine key are not independent.
    """
    engines = grouped((point for point in points if "reserved" in point.errors), lambda point: point.engine)
    return {
        engine: sorted(round(1 / (1 + point.errors["reserved"]), DIGITS) for point in some)
        for engine, some in sorted(engines.items())
    }


def kinds(measured: Iterable[Config]) -> dict[str, dict[str, int]]:
    """Count the engine configurations among ``measured``: GPU -> kind -> number."""
    engines = {engine_key(config): (config.hardware.gpu, kind(config)) for config in measured}
    found: dict[str, dict[str, int]] = {}
    for (gpu, name), count in sorted(Counter(engines.values()).items()):
        found.setdefault(gpu, {})[name] = count
    return found
