"""The predictions of a sweep: the traces that decide the others are made first, in one process on all cores."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from memlab.disk import is_full
from memlab.errors import reason_of
from memlab.launch.job import Job
from memlab.launch.sweep import Assortment, Observer, Result
from memlab.predict import cache
from memlab.predict.limits import unpredictable
from memlab.predict.predict import failed_record, finished, not_predicted, predict_one
from memlab.record import Record


def assort_predictions(jobs: Iterable[Job], force: bool) -> Assortment:
    """Done, unsupported, or to predict; those of one "launch" share their traces. Reads run folders, writes nothing."""
    found = Assortment()
    sharing: dict[Path, list[Job]] = {}
    for job in jobs:
        if not force and (record := _finished(job)):
            found.known.append(Result(job, record, "done"))
        elif unpredictable(job.config):
            found.known.append(Result(job, None, "unsupported"))
        else:
            sharing.setdefault(cache.trace_folder(job.plan), []).append(job)
    found.launches = list(sharing.values())
    return found


def _finished(job: Job) -> Record | None:
    """The record that need not be made again. ``None`` where that cannot be told, as of a calibration that cannot be
    fitted: the prediction then says why."""
    try:
        return finished(job)
    except Exception:
        return None


def predict_jobs(jobs: Sequence[Job], force: bool, observer: Observer) -> list[Result]:
    """A record for every job. What cannot be traced is tried once."""
    found = assort_predictions(jobs, force)
    observer.began(found.launches, found.known)
    results = []

    def tell(result: Result) -> None:
        results.append(result)
        observer.finished(result)

    for result in found.known:
        if result.record is None:
            result.record = _predicted(result.job, None)
        tell(result)
    failed = _trace_deciding(found.launches, observer)
    for group in found.launches:
        reason = failed.get(cache.trace_folder(group[0].plan))
        for job in group:
            tell(Result(job, _predicted(job, reason), "predicted"))
    return results


def _trace_deciding(launches: Sequence[Sequence[Job]], observer: Observer) -> dict[Path, str]:
    """Make the traces that decide the others. Returns the trace folders where one could not be made, with the reason;
    none where tracing could not even begin: then every job tries by itself, and its record says why it failed."""
    plans = [job.plan for group in launches for job in group]
    deciding = cache.deciding(plans)
    if deciding:
        others = ", which decide the others" if len(deciding) < len(plans) else ""
        observer.waiting(f"tracing {len(deciding)} point{'s' * (len(deciding) != 1)}{others}")
    try:
        return dict(cache.make_missing(deciding))
    except Exception:
        return {}


def _predicted(job: Job, reason: str | None) -> Record:
    """The job's record. ``reason``: why a trace of its configuration failed. An exception ends this job alone, but
    for a full disk, on which no other could be recorded either."""
    try:
        untraced = reason is not None and cache.known_traces(job.plan) is None
        return not_predicted(job, reason) if untraced else predict_one(job)
    except Exception as error:
        if is_full(error):
            raise
        return failed_record(job, reason_of(error))
