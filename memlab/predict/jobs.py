"""Predictions of a sweep. One process makes the needed traces first, on all cores; the others are interpolated."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from memlab.core.errors import reason_of
from memlab.core.grouping import grouped
from memlab.core.plan import shape_of
from memlab.core.record import Record
from memlab.files.disk import is_full
from memlab.predict.limits import unpredictable
from memlab.predict.prediction import failed_record, finished, not_predicted, predict_one
from memlab.predict.trace.choose_traces import known_traces, make, next_tasks
from memlab.predict.trace.store import trace_folder
from memlab.runs.job import Job, JobResult, Schedule, SweepObserver, sort_out


def schedule_predictions(jobs: Iterable[Job], force: bool) -> Schedule:
    """Sort jobs into done, unsupported and to predict. The jobs of one "launch" share their traces. Reads run folders,
    writes nothing."""
    earlier = (lambda job: None) if force else _finished
    known, to_run = sort_out(jobs, earlier, lambda job: unpredictable(job.config))
    return Schedule(known, list(grouped(to_run, lambda job: trace_folder(job.plan)).values()))


def _finished(job: Job) -> Record | None:
    """Return the job's record if it is still valid. ``None`` if not, or if the check fails, for instance because a
    calibration cannot be fitted: the prediction then reports why."""
    try:
        return finished(job)
    except Exception:
        return None


def predict_jobs(jobs: Sequence[Job], force: bool, observer: SweepObserver) -> list[JobResult]:
    """Predict every job and return its result. A trace that fails is tried once."""
    found = schedule_predictions(jobs, force)
    observer.began(found.launches, found.known)
    results = []

    def tell(result: JobResult) -> None:
        results.append(result)
        observer.finished(result)

    for result in found.known:
        if result.record is None:
            result.record = _predicted(result.job, None)
        tell(result)
    failed = _trace(found.launches, observer)
    for group in found.launches:
        reason = failed.get(trace_folder(group[0].plan))
        for job in group:
            tell(JobResult(job, _predicted(job, reason), "predicted"))
    return results


def _trace(launches: Sequence[Sequence[Job]], observer: SweepObserver) -> dict[Path, str]:
    """Make the traces from which the others are interpolated. Returns the trace folders with a failed trace, each with
    the reason. Empty if tracing could not even begin: then every job tries by itself, and its record has the reason."""
    try:
        plans = [job.plan for group in launches for job in group]
        if tasks := next_tasks(plans):
            traced = {(trace_folder(task.plan), task.key.micro, task.key.tokens) for task in tasks}
            rest = {(trace_folder(plan), *shape_of(plan.config)) for plan in plans} - traced
            others = "; the others are computed from them" if rest else ""
            observer.waiting(f"tracing {len(traced)} point{'s' * (len(traced) != 1)}{others}")
        return make(tasks)
    except Exception:
        return {}


def _predicted(job: Job, reason: str | None) -> Record:
    """Return the job's record. ``reason``: why a trace of its configuration failed. An exception ends this job alone,
    except on a full disk, where no other job could be recorded either."""
    try:
        untraced = reason is not None and known_traces(job.plan) is None
        return not_predicted(job, reason) if untraced else predict_one(job)
    except Exception as error:
        if is_full(error):
            raise
        return failed_record(job, reason_of(error))
