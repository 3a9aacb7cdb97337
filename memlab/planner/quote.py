"""Quote of a sweep that measures, before it runs: which points fit, and its time and price, from predictions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memlab.core.basis import EXACT, Basis
from memlab.core.config import Sweep
from memlab.core.plan import make_plan
from memlab.core.record import DOES_NOT_FIT
from memlab.planner.search import Progress
from memlab.prediction.not_predicted import unpredictable
from memlab.runs.job import Job, by_kind

Range = tuple[float, float | None]
"""The lowest and the highest value; highest ``None``: not known."""

LAUNCH_S: Range = (16.0, 37.0)
"""Seconds of a launch beside its points, for start-up, model and engine: nine in ten launches of results/, on H200s."""

POINT_S: Range = (0.3, 0.7)
"""Seconds of a point beside its steps: nine in ten of results/. tests/unit/planner/test_quote.py recomputes both."""


@dataclass(frozen=True)
class QuotedPoint:
    """The prediction of a point to measure; ``summary`` is empty if there is none."""

    job: Job
    summary: Mapping[str, Any]
    basis: Basis

    @property
    def fits(self) -> bool:
        """Whether the point ends with a result: no prediction says that its steps run out of memory."""
        return self.summary.get("verdict") != DOES_NOT_FIT

    @property
    def missing(self) -> str | None:
        """Why the time of the point is not known; ``None`` if it is."""
        if not self.summary:
            return next(iter(unpredictable(self.job.config)), "its prediction failed; mode=predict says why")
        return "the hardware entry lacks speeds" if self.fits and "step_seconds_mean" not in self.summary else None

    @property
    def launch_seconds(self) -> Range:
        """The time of a launch beside its points; of a command it is not known."""
        return (0.0, None) if self.job.config.is_command else LAUNCH_S

    @property
    def seconds(self) -> Range:
        """The time of the point in its launch. A point that does not fit ends before its steps do."""
        if self.missing or not self.fits:
            return (0.0, None) if self.missing else POINT_S
        measure = self.job.config.measure
        return _sum([POINT_S, self.basis.range((measure.warmup + measure.steps) * self.summary["step_seconds_mean"])])


@dataclass(frozen=True)
class Quote:
    """A quote. ``launches``: how many start, with one more where an out-of-memory ends a launch before its last point.
    ``seconds``, ``usd``: of all launches, one after another; ``usd`` is ``None`` if a price is not known."""

    points: list[QuotedPoint]
    launches: int
    seconds: Range
    usd: Range | None


def quote(launches: Sequence[Sequence[Job]], prune: bool, on_progress: Progress) -> Quote:
    """Predict the points of these launches and add up their times. ``prune``: as ``sweep.prune``."""
    points = _predicted([job for launch in launches for job in launch], on_progress)
    started = list(_started(launches, points, prune))
    seconds = [_sum([launch[0].launch_seconds, *(point.seconds for point in launch)]) for launch in started]
    prices = [launch[0].job.config.hardware.total_usd_per_hour for launch in started]
    usd = [
        (low * price / 3600, high and high * price / 3600)
        for (low, high), price in zip(seconds, prices, strict=True)
        if price is not None
    ]
    return Quote(list(points.values()), len(started), _sum(seconds), None if None in prices else _sum(usd))


def _predicted(jobs: Sequence[Job], on_progress: Progress) -> dict[str, QuotedPoint]:
    """Return folder -> prediction. Repeats of an experiment share one."""
    from memlab.planner.command_sweep import predictor_of  # here, because few runs ask for a quote

    found: dict[str, tuple[Mapping[str, Any], Basis]] = {}
    for of_kind in by_kind(job for job in jobs if not unpredictable(job.config)):
        keys = {
            job.subject_key: make_plan(replace(job.config, mode="predict", sweep=Sweep()), job.plan.choices)
            for job in of_kind
        }
        plans = list(keys.values())
        with predictor_of(plans[0].config, on_progress) as predictor:
            predictor.prepare(plans)
            found |= zip(keys, predictor.outlooks(plans), strict=True)
    return {str(job.folder): QuotedPoint(job, *found.get(job.subject_key, ({}, EXACT))) for job in jobs}


def _started(
    launches: Sequence[Sequence[Job]], points: Mapping[str, QuotedPoint], prune: bool
) -> Iterator[list[QuotedPoint]]:
    """Yield the points of each launch that starts. An out-of-memory ends its launch; the points that it implies do not
    run, and a new launch runs the others."""
    too_large: list[Job] = []
    for launch in launches:
        left = [points[str(job.folder)] for job in launch]
        while left := [point for point in left if not (prune and any(map(point.job.is_implied_by, too_large)))]:
            ran = next((number for number, point in enumerate(left, 1) if not point.fits), len(left))
            too_large += [point.job for point in left[:ran] if not point.fits]
            yield left[:ran]
            left = left[ran:]


def _sum(ranges: Iterable[Range]) -> Range:
    lows, highs = zip((0.0, 0.0), *ranges, strict=True)
    return sum(lows), None if None in highs else sum(highs)
