"""Execution of a sweep: every job gets a record, in as few launches as possible, also after failures.

memlab skips jobs that are done and records unsupported jobs with their reason. It groups the rest into launches: jobs
that differ only in shape share a launch, smallest first. Launches run side by side if there are enough GPUs. An
out-of-memory ends its launch. Larger jobs and repeats of the same configuration are then recorded as implied, and the
other jobs go on in a new launch. A round of repeats begins when the previous round is over.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby

from memlab.core.config import Sweep
from memlab.core.errors import reason_of
from memlab.core.record import FINAL, Record
from memlab.files.disk import is_full
from memlab.launch.job import IMPLIED, OUT_OF_MEMORY, Job, is_implied
from memlab.launch.pool import GpuPool
from memlab.launch.run import Control, launch_jobs
from memlab.rules.rules import unsupported
from memlab.system.machine import Machine

JOBS_PER_LAUNCH = 64
"""Maximum jobs of a launch. With more jobs, the start-up time per job hardly falls, and each job holds a lock."""


@dataclass
class Result:
    """The result of one job of a sweep.

    ``how``: measured, predicted, done (by an earlier run), implied, unsupported or not reached.
    """

    job: Job
    record: Record | None
    how: str


class Observer:
    """Callbacks of a running sweep. Several threads may call the methods, but only one at a time."""

    def began(self, to_run: Sequence[Sequence[Job]], known: Sequence[Result]) -> None: ...
    def waiting(self, text: str) -> None: ...
    def launched(self, jobs: Sequence[Job], gpu_ids: Sequence[str]) -> None: ...
    def finished(self, result: Result) -> None: ...


@dataclass
class Assortment:
    """The jobs of a sweep before anything runs: known results, and launches of the other jobs."""

    known: list[Result] = field(default_factory=list)
    launches: list[list[Job]] = field(default_factory=list)

    def __add__(self, other: "Assortment") -> "Assortment":
        return Assortment(self.known + other.known, self.launches + other.launches)


def assort(jobs: Iterable[Job], machine: Machine, options: Sweep, force: bool, seed: int = 0) -> Assortment:
    """Sort jobs into done, unsupported and launches to run. Only reads run folders; writes and starts nothing."""
    found = Assortment()
    to_run = []
    for job in unique(jobs):
        if not force and (record := job.finished(machine, options.prune)):
            found.known.append(Result(job, record, "done"))
        elif unsupported(job.config, machine):
            found.known.append(Result(job, None, "unsupported"))
        else:
            to_run.append(job)
    found.launches = gather(to_run, options.isolation, seed)
    return found


def gather(jobs: Sequence[Job], isolation: str, seed: int) -> list[list[Job]]:
    """Group jobs into launches, smallest job first. Repeats of a job are in later rounds, each in its own order."""
    rounds: dict[int, dict[str, list[Job]]] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for job in jobs:
        repeat, key = job.config.measure.repeat, job.memory_key
        # Equal experiments may have several folders: each folder gets its own launch.
        if isolation == "fresh" or job.config.measure.protocol == "cold":
            seen[repeat, job.subject_key] += 1
            key = f"{job.subject_key}-{seen[repeat, job.subject_key]}"
        rounds.setdefault(repeat, {}).setdefault(key, []).append(job)
    launches = []
    for groups in in_spread_orders([rounds[repeat] for repeat in sorted(rounds)], random.Random(seed)):
        ordered = [sorted(group, key=lambda job: job.size) for group in groups]
        launches += [group[i : i + JOBS_PER_LAUNCH] for group in ordered for i in range(0, len(group), JOBS_PER_LAUNCH)]
    return launches


def in_spread_orders(rounds: Sequence[Mapping[str, list[Job]]], chance: random.Random) -> Iterator[list[list[Job]]]:
    """Yield the groups of each round in shuffled order, with at least a third of a round from a group to its repeat.

    For the next round, this round's order is cut into two parts, and each part is shuffled. A single round keeps its
    order.
    """
    order = list(dict.fromkeys(key for groups in rounds for key in groups))
    if len(rounds) > 1:
        chance.shuffle(order)
    for groups in rounds:
        yield [groups[key] for key in order if key in groups]
        cut = chance.randint((len(order) + 2) // 3, max(1, 2 * len(order) // 3))
        order = [*chance.sample(order[:cut], cut), *chance.sample(order[cut:], len(order) - cut)]


class SweepRun:
    """The execution of a sweep. ``run`` returns a result for every job, also after an interruption."""

    def __init__(self, machine: Machine, options: Sweep, force: bool, observer: Observer):
        self.machine, self.options, self.force, self.observer = machine, options, force, observer
        self.pool = GpuPool(machine.gpus)
        self.stop = threading.Event()
        self.interrupted = False
        self.results: dict[str, Result] = {}
        self._ooms: dict[str, list[Result]] = {}  # memory key -> out-of-memory results that were measured
        self._waits_told: set[str] = set()
        self._telling = threading.Lock()
        self._usd_per_hour = 0.0
        self._began = time.monotonic()

    def run(self, jobs: Sequence[Job], seed: int = 0) -> list[Result]:
        self._usd_per_hour = usd_per_hour(jobs)
        end_orphans(jobs)
        found = assort(jobs, self.machine, self.options, self.force, seed)
        self.observer.began(found.launches, found.known)
        for result in found.known:
            if result.how == "unsupported":
                result.record = self._record_unsupported(result.job)
            self._tell(result)
        try:
            self._run_all(found.launches)
        except KeyboardInterrupt:
            self.interrupted = True
        return [self.results.get(str(job.folder), Result(job, None, "not reached")) for job in unique(jobs)]

    def _record_unsupported(self, job: Job) -> Record:
        return self._record(job, "unsupported", "; ".join(unsupported(job.config, self.machine)))

    def _record(self, job: Job, status: str, reason: str) -> Record:
        """Return the record of a job that is not run.

        Writes the record to disk, unless writing fails or another memlab holds the folder: the job may end differently
        there. Raises the error of a full disk.
        """
        try:
            with job.lock() as mine:
                if mine:
                    return job.record_without_running(self.machine, status, reason)
        except Exception as error:
            if is_full(error):
                raise
            status, reason = "failed", reason if status == "failed" else reason_of(error)
        return replace(job.new_record(self.machine, "fresh"), status=status, reason=reason)

    def _run_all(self, launches: list[list[Job]]) -> None:
        threads = max(1, len(self.machine.gpus))
        with ThreadPoolExecutor(threads, thread_name_prefix="launch") as executor:
            try:
                for _, one_round in groupby(launches, key=lambda jobs: jobs[0].config.measure.repeat):
                    futures = [executor.submit(self._run_or_fail, group) for group in one_round]
                    for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                        future.result()
            except BaseException:
                self.stop.set()
                raise

    def _run_or_fail(self, jobs: list[Job]) -> None:
        """Run a group of jobs. After an exception, the group's jobs without a result are recorded as failed.

        A full disk ends the whole sweep, because nothing more could be recorded.
        """
        try:
            self._run_group(jobs)
        except Exception as error:
            if is_full(error):
                raise
            self._fail(jobs, reason_of(error))

    def _fail(self, jobs: list[Job], reason: str) -> None:
        for job in jobs:
            if str(job.folder) not in self.results:
                self._tell(Result(job, self._record(job, "failed", reason), "measured"))

    def _run_group(self, jobs: list[Job]) -> None:
        """Run the jobs of one configuration, with a new launch after each launch that ends early."""
        while jobs and not self._must_stop():
            with ExitStack() as locks:
                mine, elsewhere = [], []
                for job in jobs:
                    (mine if locks.enter_context(job.lock()) else elsewhere).append(job)
                left = self._drop_known(mine)
                if left:
                    left = left[self._launch(left) :]
            jobs = left + elsewhere
            if not mine:  # another memlab measures all remaining jobs: wait for its records
                who, others = jobs[0].folder.holder(), f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
                self._tell_waiting(
                    f"waiting for {jobs[0].folder}{others}: another memlab ({who}) measures there; "
                    "if it hangs, end it with kill PID, and this sweep goes on"
                )
                self.stop.wait(1.0)

    def _launch(self, jobs: list[Job]) -> int:
        """Run one launch. Returns the number of jobs that are over."""
        alone = jobs[0].is_alone(self.options.side_by_side)
        with self.pool.take(jobs[0].gpus, alone, self._must_stop, self._tell_waiting) as gpus:
            if gpus is None:
                return 0
            with self._telling:
                self.observer.launched(jobs, [gpu.id for gpu in gpus])
            control = Control(self.stop, self.over_budget, self._tell_measured, self._tell_waiting)
            return len(launch_jobs(jobs, self.machine, gpus, control))

    def _drop_known(self, jobs: list[Job]) -> list[Job]:
        """Drop jobs that another memlab has measured meanwhile, or that an out-of-memory implies."""
        left = []
        for job in jobs:
            if not self.force and (record := job.finished(self.machine, self.options.prune)):
                self._tell(Result(job, record, "done"))
            elif implied_by := self._implied_by(job):
                record = job.record_without_running(self.machine, implied_by.status, IMPLIED + implied_by.run_id)
                self._tell(Result(job, record, "implied"))
            else:
                left.append(job)
        return left

    def _implied_by(self, job: Job) -> Record | None:
        """Return an out-of-memory record of the same configuration whose batch and sequence are not larger."""
        if not self.options.prune:
            return None
        for result in self._ooms.get(job.memory_key, []):
            smaller, config = result.job.config, job.config
            if smaller.batch.micro <= config.batch.micro and smaller.seq_len.tokens <= config.seq_len.tokens:
                return result.record
        return None

    def _must_stop(self) -> bool:
        return self.stop.is_set() or self.over_budget() is not None

    def over_budget(self) -> str | None:
        """Name the limit of time or money that this sweep has reached; ``None`` if it has reached none."""
        options = self.options
        if options.max_hours is not None and (time.monotonic() - self._began) / 3600 >= options.max_hours:
            return f"at sweep.max_hours={options.max_hours:g}"
        if options.max_usd is not None and self.usd() >= options.max_usd:
            return f"at sweep.max_usd={options.max_usd:g}"
        return None

    def usd(self) -> float:
        """Return the cost of the hardware since the sweep began, in US dollars; 0 if its price is unknown."""
        return (time.monotonic() - self._began) / 3600 * self._usd_per_hour

    def _tell_measured(self, job: Job, record: Record) -> None:
        self._tell(Result(job, record, "measured"))

    def _tell(self, result: Result) -> None:
        with self._telling:
            self.results[str(result.job.folder)] = result
            if result.record.status in OUT_OF_MEMORY and not is_implied(result.record):
                self._ooms.setdefault(result.job.memory_key, []).append(result)
            with suppress(OSError):  # a closed terminal must not end the sweep
                self.observer.finished(result)

    def _tell_waiting(self, text: str) -> None:
        with self._telling, suppress(OSError):
            if text not in self._waits_told:
                self._waits_told.add(text)
                self.observer.waiting(text)


def end_orphans(jobs: Iterable[Job]) -> None:
    """End the processes that a killed memlab left running in the folders of these jobs, also of finished jobs."""
    for job in jobs:
        if job.folder.kept_launch():
            with job.lock():
                pass


def usd_per_hour(jobs: Iterable[Job]) -> float:
    """Return the price of the hardware of these jobs in US dollars per hour; 0 if it is unknown."""
    rates = (job.config.hardware.total_usd_per_hour for job in jobs)
    return next((rate for rate in rates if rate is not None), 0.0)


def is_complete(results: Iterable[Result]) -> bool:
    """Whether every job has a record with a final status, which another run would not change."""
    return all(result.record is not None and result.record.status in FINAL for result in results)


def unique(jobs: Iterable[Job]) -> list[Job]:
    """Drop jobs with the same folder: Hydra would run equal points twice."""
    return list({str(job.folder): job for job in jobs}.values())
