"""The backend of a sweep that predicts memlab's own training: one process makes the traces for all points first."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from memlab.core.errors import reason_of
from memlab.core.grouping import grouped
from memlab.core.plan import shape_of
from memlab.core.record import Record
from memlab.files.disk import is_full
from memlab.launch.launch_control import LaunchControl
from memlab.launch.sweep import Backend, in_parts
from memlab.prediction.not_predicted import unpredictable
from memlab.prediction.prediction import SHADOW_FAILED, failed_record, predict_one
from memlab.prediction.time.calibrate import calibrations_of
from memlab.prediction.traces.choose_traces import known_traces, make, next_tasks
from memlab.prediction.traces.store import code_digest, trace_folder
from memlab.runs.job import Job


class TrainingPredictions(Backend):
    """Every point is predicted, also after an out-of-memory: that takes seconds. A trace that fails is tried once.

    Tracing runs in the sweep's thread: a signal ends the shadow process with it.
    """

    at_once = 0
    prunes = False

    _failed: dict[Path, str]
    """Trace folders with a failed trace, each with the reason."""

    def finished(self, job: Job, also_implied: bool = True) -> Record | None:
        """Return the record in the job's folder if the same predictor and the same calibration made it, else ``None``.

        Also ``None`` if the calibration cannot be fitted: the prediction then reports why.
        """
        found = super().finished(job, also_implied)
        if found is None or found.environment.get("predictor") != code_digest():
            return None
        with suppress(Exception):
            calibration = calibrations_of(job.config).step
            return found if found.steps.get("calibration") == (calibration.digest if calibration else None) else None
        return None

    def refusals(self, job: Job) -> list[str]:
        return unpredictable(job.config)

    def launches(self, jobs: Sequence[Job], isolation: str, seed: int) -> list[list[Job]]:
        """Group the jobs that share their traces."""
        return in_parts(grouped(jobs, lambda job: trace_folder(job.plan)).values())

    def prepare(self, launches: Sequence[Sequence[Job]], control: LaunchControl) -> None:
        """Make the traces from which the others are interpolated. If tracing cannot even begin, every job tries by
        itself, and its record has the reason."""
        self._failed, plans = {}, [job.plan for jobs in launches for job in jobs]
        with suppress(Exception):
            if tasks := next_tasks(plans):
                traced = {(trace_folder(task.plan), task.key.micro, task.key.tokens) for task in tasks}
                rest = {(trace_folder(plan), *shape_of(plan.config)) for plan in plans} - traced
                others = "; the others are computed from them" if rest else ""
                control.on_wait(f"tracing {len(traced)} point{'s' * (len(traced) != 1)}{others}")
            self._failed = make(tasks)

    def run_alone(self, job: Job, on_wait: Callable[[str], None]) -> Record:
        return self.finished(job) or predict_one(job)

    def run_one(self, job: Job, control: LaunchControl) -> Record | None:
        """Predict a job. An exception ends this job alone, except on a full disk, where no other job could be recorded
        either."""
        if control.must_end():
            return None
        try:
            reason = self._failed.get(trace_folder(job.plan))
            if reason is not None and known_traces(job.plan) is None:
                return failed_record(job, SHADOW_FAILED + reason)
            return predict_one(job)
        except Exception as error:
            if is_full(error):
                raise
            return failed_record(job, reason_of(error))
