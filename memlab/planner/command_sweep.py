"""Sweeps and searches over a command of the user's own, predicted: each point runs its script on simulated GPUs."""

from functools import partial

from memlab.core.config import Sweep
from memlab.core.record import Record
from memlab.launch.search import LIMITS, MeasuredSearch, at_size, precision, size_of
from memlab.launch.sweep import MeasuredSweep
from memlab.planner.command_point import finished_point, predict_point
from memlab.planner.interpolated_size import largest_interpolated
from memlab.planner.search import next_size, outcome_of
from memlab.planner.shadow_slots import ShadowSlots
from memlab.predict.limits import unpredictable
from memlab.predict.prediction import NOWHERE
from memlab.runs.job import Job
from memlab.runs.results import SearchResult, SweepObserver


class PredictedSweep(MeasuredSweep):
    """A sweep whose points are predicted: resumed, pruned and interrupted like one that measures."""

    how = "predicted"

    def __init__(self, options: Sweep, force: bool, observer: SweepObserver, slots: ShadowSlots | None = None):
        """``slots``: those of several sweeps, one after another; they know how much memory a prediction takes."""
        super().__init__(NOWHERE, options, force, observer)
        self._slots = slots or ShadowSlots()

    def finished(self, job: Job, also_implied: bool) -> Record | None:
        return None if self.force else finished_point(job, also_implied)

    def refusals(self, job: Job) -> list[str]:
        return unpredictable(job.config)

    def _threads(self) -> int:
        return self._slots.most

    def _launch(self, jobs: list[Job]) -> int:
        """Predict jobs, up to the first that does not end well. Returns the number of jobs that are over."""
        for number, job in enumerate(jobs):
            with self._slots.take(self._must_stop) as taken:
                if not taken:
                    return number
                record = predict_point(job, self._control(), self.force)
            self._tell_ended(job, record)
            if record.status != "ok":
                return number + 1
        return len(jobs)


class PredictedSearch(PredictedSweep, MeasuredSearch):
    """A sweep of searches. Memory that was predicted shows how far to go, so that few sizes are run."""

    def _next_sizes(self, found: SearchResult) -> list[int]:
        kind = found.job.config.sweep.search
        tried = {size: outcome_of(record) for size, record in found.tried.items()}
        limit = self.options.search_limit or LIMITS[kind]
        computed = partial(self._largest, found)
        size = next_size(tried, limit, size_of(found.job.config), precision(kind, found.fits), computed)
        return [] if size is None else [size]

    def _largest(self, found: SearchResult, low: int, high: int) -> int | None:
        ran = [size for size, record in found.tried.items() if record.status == "ok"]
        folders = {size: at_size(found.job, size).folder.path for size in ran}
        return largest_interpolated(folders, found.tried[low].config, low, high)

    def _confirm(self, found: SearchResult) -> None:
        """Take the largest size that fits: predicting it again would say the same."""
        found.best, found.confirmation = found.fits, found.tried[found.fits]
