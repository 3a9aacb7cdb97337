"""Search for the largest micro batch, or the longest sequence, that trains: doubling, then bisection, in few launches.

Only an out-of-memory ends a launch, so each launch tries larger and larger sizes until one does not fit. The first
launch doubles the size; later launches try sizes between the largest that fits and the smallest that does not. The
largest size that fits is measured once more, for longer and in its own launch, because a size that only just fits may
spend its time in the allocator ("thrashes").
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from memlab.core.config import Config, Measure
from memlab.core.plan import make_plan, size_of, with_size
from memlab.core.record import OUT_OF_MEMORY, Record
from memlab.launch.orphans import exclusively
from memlab.launch.sweep import RunningSweep
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job, JobResult, Schedule, SearchResult, usd_per_hour

LIMITS = {"batch": 4096, "seq_len": 1_048_576}
"""Largest sizes that a search tries by default (``sweep.search_limit``)."""

CONFIRMATION = Measure(warmup=5, steps=30)
"""Warm-up and measured steps of the last measurement, of the largest size that fits."""


class RunningSearch(RunningSweep):
    """A sweep of searches. Each job gives the configuration and the first size of one search."""

    found: dict[str, SearchResult]

    def run(self, jobs: Sequence[Job], seed: int = 0) -> list[JobResult]:
        self._usd_per_hour = usd_per_hour(jobs)
        self.found = {str(job.folder): SearchResult(job) for job in jobs}
        known, to_run = self._sort_out(jobs, resumes=False)
        found = Schedule(known, [[job] for job in to_run])
        self.observer.began(found.launches, [])
        self._carry_out(found)
        return list(self.results.values())

    def _run_group(self, jobs: list[Job]) -> None:
        found = self.found[str(jobs[0].folder)]
        while not self._must_end(found) and (sizes := self.backend.next_sizes(found, self.options.search_limit)):
            self._try(found, sizes)
        while not self._must_end(found) and found.fits and found.best is None:
            self._confirm(found)

    def _fail(self, jobs: list[Job], reason: str) -> None:
        for job in jobs:
            self.found[str(job.folder)].gave_up = reason
        super()._fail(jobs, reason)

    def _must_end(self, found: SearchResult) -> bool:
        return self._control.must_end() or found.gave_up is not None

    def _try(self, found: SearchResult, sizes: list[int]) -> None:
        """Run these sizes in one launch until one does not fit."""
        jobs = [at_size(found.job, size) for size in sizes]
        for size, record in zip(sizes, self._reached(jobs), strict=False):
            found.tried[size] = record
            found.gave_up = _without_result(record) or found.gave_up or _disagreement(record, found.job.config)

    def _confirm(self, found: SearchResult) -> None:
        size = found.fits
        if self.backend.confirmation is None:
            found.best, found.confirmation = size, found.tried[size]
            return
        for record in self._reached([at_size(found.job, size, self.backend.confirmation)]):
            found.confirmation, found.gave_up = record, _without_result(record)
            if record.status == "ok":
                found.best = size
            elif not found.gave_up:  # fits in the search, but not in the longer measurement
                found.tried[size] = record

    def _reached(self, jobs: list[Job]) -> list[Record]:
        """Return the records of the jobs that were reached, in order. Reuses records of an earlier run."""
        records: list[Record] = []
        with ExitStack() as locks:
            for job in jobs:
                locks.enter_context(exclusively(job))
            for job in jobs:
                if (record := self.backend.finished(job, also_implied=False)) is None:
                    break
                self._tell(JobResult(job, record, "done"))
                records.append(record)
                if record.status != "ok":
                    return records
            left = jobs[len(records) :]
            return [*records, *self.backend.run(left, self._control)] if left else records


def next_sizes(found: SearchResult, limit: int | None) -> Iterator[int]:
    """Yield the sizes of the next launch in ascending order; none if the search is over."""
    kind = found.job.config.sweep.search
    if found.fails is None:
        size = found.fits * 2 or size_of(found.job.config)
        while size <= (limit or LIMITS[kind]):
            yield size
            size *= 2
        return
    low, high = found.fits, found.fails
    while high - low > precision(kind, found.fits):
        low = (low + high) // 2
        yield low


def precision(kind: str, size: int) -> int:
    """Return how far the next size may lie above the largest that fits: a length within 1/64 is precise enough."""
    return 1 if kind == "batch" else max(1, size // 64)


def _without_result(record: Record) -> str | None:
    """Say how a size ended that neither trained nor ran out of memory; ``None`` for any other."""
    ended = record.status == "ok" or record.status in OUT_OF_MEMORY
    return None if ended else f"{record.run_id} ended as {record.status}: {record.reason}"


def _disagreement(record: Record, config: Config) -> str | None:
    """Say that a command did not use the size that it was given; ``None`` if it did."""
    searched = "batch.micro" if config.sweep.search == "batch" else "seq_len.tokens"
    for each in record.command.get("disagreements", []):
        if each["key"] == searched and record.status == "ok":
            return f"{record.run_id}: the script was given {searched}={each['composed']} and used {each['found']}"
    return None


def at_size(job: Job, size: int, measure: Measure | None = None) -> Job:
    """Return the job at another size, with its own folder beside the job's."""
    config = with_size(job.config, size)
    if measure is not None:
        config = replace(config, measure=replace(config.measure, warmup=measure.warmup, steps=measure.steps))
    plan = make_plan(config, job.plan.choices)
    return Job(plan, RunFolder(job.folder.path.parent / plan.run_id))
