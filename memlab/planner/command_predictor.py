"""Estimates of a command of the user's own, for ``memlab plan``: each size is a run of its script without GPUs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from memlab.core.config import Sweep
from memlab.core.plan import Plan
from memlab.core.record import Record
from memlab.planner.command_point import kept_folder
from memlab.planner.command_sweep import PredictedSweep
from memlab.planner.interpolated_size import largest_interpolated
from memlab.planner.search import Outcome, fits, outcome_of
from memlab.planner.shadow_slots import ShadowSlots
from memlab.runs.job import Job
from memlab.runs.results import JobResult, SweepObserver

LARGE_GIB = 10_000.0
"""Memory of a GPU on which anything fits, to see what a plan would need."""


class CommandPredictor:
    """Predictor of commands. Every prediction stays in the user's cache, so an interrupted plan continues there.

    ``on_progress`` is called with the progress: ("predicting", 3, 12).
    """

    def __init__(self, on_progress: Callable[[str, int, int], None]):
        self._on_progress = on_progress
        self._slots = ShadowSlots()

    def prepare(self, plans: Sequence[Plan]) -> None:
        """Do nothing: what a script allocates at one size says nothing certain about another."""

    def estimates(self, plans: Sequence[Plan], limited: bool = True) -> list[Outcome]:
        """Return an estimate for each plan, or the reason why there is none. ``limited=False``: of what it needs."""
        found = [outcome_of(record) for record in self._records(plans)]
        if limited:
            return found
        tight = [number for number, outcome in enumerate(found) if not isinstance(outcome, str) and not fits(outcome)]
        needs = self._records([_on_a_large_gpu(plans[number]) for number in tight])
        for number, record in zip(tight, needs, strict=True):
            found[number] = outcome_of(record)
        return found

    def largest(self, plan_at: Callable[[int], Plan], sizes: Sequence[int], low: int, high: int) -> int | None:
        """Compute the largest size that fits, where the sizes that ran determine all others."""
        records = dict(zip(sizes, self._records([plan_at(size) for size in sizes]), strict=True))
        folders = {size: kept_folder(plan_at(size)).path for size, record in records.items() if record.status == "ok"}
        return largest_interpolated(folders, records[low].config, low, high)

    def summaries(self, plans: Sequence[Plan]) -> list[dict[str, Any]]:
        """Return the summaries of the plans' records, without figures that are not known."""
        return [
            {key: value for key, value in record.summary.items() if value is not None}
            for record in self._records(plans)
        ]

    def _records(self, plans: Sequence[Plan]) -> list[Record]:
        jobs = [Job(plan, kept_folder(plan)) for plan in plans]
        observer = _Progress(lambda done: self._on_progress("predicting", done, len(jobs)))
        sweep = PredictedSweep(Sweep(prune=False), False, observer, self._slots)
        results = {str(result.job.folder): result.record for result in sweep.run(jobs) if result.record}
        if sweep.interrupted:
            raise KeyboardInterrupt
        return [results[str(job.folder)] for job in jobs]


class _Progress(SweepObserver):
    def __init__(self, tell: Callable[[int], None]):
        self._tell, self._done = tell, 0

    def finished(self, result: JobResult) -> None:
        self._done += 1
        self._tell(self._done)


def _on_a_large_gpu(plan: Plan) -> Plan:
    config = plan.config
    return replace(plan, config=replace(config, hardware=replace(config.hardware, memory_gib=LARGE_GIB)))
