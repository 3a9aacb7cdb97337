"""The largest micro batch, or the longest sequence, that trains: doubling, then bisection, in few launches.

Only an out-of-memory ends a launch, so each launch tries larger and larger sizes until one does not fit: first doubled
ones, then ever finer ones below it. The largest that fits is measured once more, for longer and in a launch of its own,
because a size that only just fits may spend its time in the allocator ("thrashes").
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from memlab.config import Config, Measure
from memlab.errors import MemlabError
from memlab.launch.job import Job
from memlab.launch.sweep import Result, SweepRun, usd_per_hour
from memlab.plan import make_plan
from memlab.record import Record, RunFolder
from memlab.rules import unsupported

LIMITS = {"batch": 4096, "seq_len": 1_048_576}
"""Where a search ends unless ``sweep.search_limit`` says otherwise."""

CONFIRMATION = Measure(warmup=5, steps=30)
"""How the largest size is measured once more."""

SLOWER = 0.9
"""A size that fits but trains fewer samples a second than this share of the best smaller one is said to thrash."""


@dataclass
class Found:
    """The outcome of one search. ``tried`` maps each size to its record, ``best`` is the largest that was confirmed."""

    job: Job
    tried: dict[int, Record] = field(default_factory=dict)
    best: int | None = None
    confirmation: Record | None = None
    gave_up: str | None = None

    @property
    def fits(self) -> int:
        """The largest size that trained; 0 when none did."""
        return max((size for size, record in self.tried.items() if record.status == "ok"), default=0)

    @property
    def fails(self) -> int | None:
        """The smallest size that was out of memory."""
        return min((size for size, record in self.tried.items() if record.status.endswith("_oom")), default=None)

    def thrashes(self, size: int) -> bool:
        """Fits, but the allocator had to free and retry, or it is slower than a smaller size."""
        record = self.tried[size]
        if record.status != "ok":
            return False
        rate = record.summary["tokens_per_second"]
        smaller = [r.summary["tokens_per_second"] for s, r in self.tried.items() if s < size and r.status == "ok"]
        return bool(record.summary.get("num_alloc_retries")) or rate < SLOWER * max(smaller, default=0.0)


class SearchRun(SweepRun):
    """A sweep in which every job stands for a search from its own size upwards."""

    found: dict[str, Found]

    def run(self, jobs: Sequence[Job], seed: int = 0) -> list[Result]:
        self._usd_per_hour = usd_per_hour(jobs)
        self.found = {str(job.folder): Found(job) for job in jobs}
        searches = [[job] for job in jobs if not unsupported(job.config, self.machine)]
        self.observer.began(searches, [])
        for job in jobs:
            if unsupported(job.config, self.machine):
                self._tell(Result(job, self._record_unsupported(job), "unsupported"))
        try:
            self._run_all(searches)
        except KeyboardInterrupt:
            self.interrupted = True
        return list(self.results.values())

    def _run_group(self, jobs: list[Job]) -> None:
        found = self.found[str(jobs[0].folder)]
        while not self._must_end(found) and (sizes := list(next_sizes(found, self.options.search_limit))):
            self._try(found, sizes)
        while not self._must_end(found) and found.fits and found.best is None:
            self._confirm(found)

    def _fail(self, jobs: list[Job], reason: str) -> None:
        for job in jobs:
            self.found[str(job.folder)].gave_up = reason
        super()._fail(jobs, reason)

    def _must_end(self, found: Found) -> bool:
        return self._must_stop() or found.gave_up is not None

    def _try(self, found: Found, sizes: list[int]) -> None:
        """Measure these sizes in one launch, until one does not fit."""
        jobs = [at_size(found.job, size) for size in sizes]
        for size, record in zip(sizes, self._measure(jobs), strict=False):
            found.tried[size] = record
            if record.status != "ok" and not record.status.endswith("_oom"):
                found.gave_up = f"{record.run_id} ended as {record.status}: {record.reason}"

    def _confirm(self, found: Found) -> None:
        size = found.fits
        job = at_size(found.job, size, CONFIRMATION)
        for record in self._measure([job]):
            found.confirmation = record
            if record.status == "ok":
                found.best = size
            elif record.status.endswith("_oom"):  # it only just fitted
                found.tried[size] = record
            else:
                found.gave_up = f"{record.run_id} ended as {record.status}: {record.reason}"

    def _measure(self, jobs: list[Job]) -> list[Record]:
        """Records in the order of the jobs, as far as they were reached; an earlier run's are taken as they are."""
        with ExitStack() as locks:
            for job in jobs:
                if not locks.enter_context(job.lock()):
                    who = job.folder.holder()
                    raise MemlabError(
                        f"{job.folder} is being measured by another memlab ({who}); wait for it, or end it if it "
                        "hangs, and start again."
                    )
            records = self._known(jobs)
            left = jobs[len(records) :]
            if left and all(record.status == "ok" for record in records):
                reached = self._launch(left)
                records += [self.results[str(job.folder)].record for job in left[:reached]]
        return records

    def _known(self, jobs: list[Job]) -> list[Record]:
        """What an earlier run has measured of these sizes, up to the first that did not fit."""
        records: list[Record] = []
        for job in jobs:
            record = None if self.force else job.finished(self.machine, also_implied=False)
            if record is None:
                break
            self._tell(Result(job, record, "done"))
            records.append(record)
            if record.status != "ok":
                break
        return records


def next_sizes(found: Found, limit: int | None) -> Iterator[int]:
    """The sizes of the next launch, ascending; none when the answer is known."""
    kind = found.job.config.sweep.search
    limit = limit or LIMITS[kind]
    start = size_of(found.job.config)
    if found.fails is None:
        size = found.fits * 2 or start
        while size <= limit:
            yield size
            size *= 2
        return
    low, high = found.fits, found.fails
    step = 1 if kind == "batch" else max(1, low // 64)  # a sequence length need not be known to the token
    while high - low > step:
        low = (low + high) // 2
        yield low


def size_of(config: Config) -> int:
    return config.batch.micro if config.sweep.search == "batch" else config.seq_len.tokens


def at_size(job: Job, size: int, measure: Measure | None = None) -> Job:
    """The job at another size, in a folder of its own beside it."""
    config = job.config
    if config.sweep.search == "batch":
        config = replace(config, batch=replace(config.batch, micro=size))
    else:
        config = replace(config, seq_len=replace(config.seq_len, tokens=size))
    if measure is not None:
        config = replace(config, measure=replace(config.measure, warmup=measure.warmup, steps=measure.steps))
    plan = make_plan(config, job.plan.choices)
    return Job(plan, RunFolder(job.folder.path.parent / plan.run_id))
