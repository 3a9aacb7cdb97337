"""The predictions of a sweep: what has to be traced is traced first, all of it in one process on all cores."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from memlab.launch.job import Job
from memlab.launch.sweep import Assortment, Observer, Result
from memlab.predict import cache
from memlab.predict.limits import unpredictable
from memlab.predict.predict import finished, not_predicted, predict_one


def assort_predictions(jobs: Iterable[Job], force: bool) -> Assortment:
    """Done, unsupported, or to predict; those of one "launch" share their traces. Reads run folders, writes nothing."""
    found = Assortment()
    to_run = []
    for job in jobs:
        if not force and (record := finished(job)):
            found.known.append(Result(job, record, "done"))
        elif unpredictable(job.config):
            found.known.append(Result(job, None, "unsupported"))
        else:
            to_run.append(job)
    where = {id(job): cache.trace_folder(job.plan) for job in to_run}
    by_folder = sorted(to_run, key=lambda job: where[id(job)])
    found.launches = [list(group) for _, group in groupby(by_folder, key=lambda job: where[id(job)])]
    return found


def predict_jobs(jobs: Sequence[Job], force: bool, observer: Observer) -> list[Result]:
    """A record for every job. A configuration that cannot be traced is tried once."""
    found = assort_predictions(jobs, force)
    observer.began(found.launches, found.known)
    results = []

    def tell(result: Result) -> None:
        results.append(result)
        observer.finished(result)

    for result in found.known:
        if result.record is None:
            result.record = predict_one(result.job)
        tell(result)
    deciding = [plan for group in found.launches for plan in cache.deciding([job.plan for job in group])]
    failed = dict(cache.make_missing(deciding))
    for group in found.launches:
        reason = failed.get(cache.trace_folder(group[0].plan))
        for job in group:
            record = not_predicted(job, reason) if reason else predict_one(job)
            tell(Result(job, record, "predicted"))
    return results
