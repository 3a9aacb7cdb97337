"""Execution of a sweep: every job gets a record, in as few launches as possible, also after failures.

memlab skips jobs that are done and records unsupported jobs with their reason. It groups the rest into launches. A
backend runs each launch: it measures or predicts the jobs. An out-of-memory ends its launch. Larger jobs and repeats of
the same configuration are then recorded as implied, and the other jobs go on in a new launch. A round of repeats begins
when the previous round is over.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from itertools import groupby

from memlab.core.config import Measure, Sweep
from memlab.core.errors import reason_of
from memlab.core.record import IMPLIED, OUT_OF_MEMORY, Record
from memlab.files.disk import is_full
from memlab.launch.launch_control import LaunchControl
from memlab.launch.orphans import end_orphans, locked
from memlab.runs.job import Job, JobResult, Schedule, SearchResult, SweepObserver, unique, usd_per_hour
from memlab.system.machine import Machine

JOBS_PER_LAUNCH = 64
"""Maximum jobs of a launch. With more jobs, the start-up time per job hardly falls, and each job holds a lock."""


def group_into_launches(jobs: Sequence[Job], isolation: str, seed: int) -> list[list[Job]]:
    """Group jobs into launches, smallest job first. Repeats of a job are in later rounds, each in its own order."""
    rounds: dict[int, dict[str, list[Job]]] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for job in jobs:
        repeat, key = job.config.measure.repeat, job.memory_key
        # Equal experiments may have several folders: each folder gets its own launch.
        if isolation == "fresh" or job.config.measure.protocol == "cold" or job.config.is_command:
            seen[repeat, job.subject_key] += 1
            key = f"{job.subject_key}-{seen[repeat, job.subject_key]}"
        rounds.setdefault(repeat, {}).setdefault(key, []).append(job)
    in_order = in_spread_orders([rounds[repeat] for repeat in sorted(rounds)], random.Random(seed))
    return in_parts(sorted(group, key=lambda job: job.size) for groups in in_order for group in groups)


def in_parts(groups: Iterable[list[Job]]) -> list[list[Job]]:
    """Cut groups into launches of at most ``JOBS_PER_LAUNCH`` jobs."""
    return [group[i : i + JOBS_PER_LAUNCH] for group in groups for i in range(0, len(group), JOBS_PER_LAUNCH)]


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


class Backend:
    """How the jobs of a sweep run: measured, predicted, or predicted as commands. The sweep around them is the same.

    ``force``: run a job again whose folder holds a valid record.
    """

    how = "predicted"
    """``JobResult.how`` of the jobs that ran."""
    machine = Machine()
    """The machine of the records. A prediction depends on the hardware entry alone, so here it is empty."""
    at_once = 1
    """Number of launches that run at once, each in a thread of its own. 0: one after another in the sweep's thread."""
    prunes = True
    """Whether an out-of-memory may imply that larger jobs run out of memory, too."""
    confirmation: Measure | None = None
    """Steps of the last run of a search, of the largest size that fits. ``None``: its first run is enough."""

    def __init__(self, force: bool = False):
        self.force = force

    def refusals(self, job: Job) -> list[str]:
        """Return the reasons why a job cannot run; empty if it can."""
        raise NotImplementedError

    def run_alone(self, job: Job, on_wait: Callable[[str], None]) -> Record:
        """Run a job that is no part of a sweep, unless it is finished. ``on_wait`` gets a message before a wait.

        Raises the exception that ends the job.
        """
        raise NotImplementedError

    def run_one(self, job: Job, control: LaunchControl) -> Record | None:
        """Run a job and write its record; ``None`` if ``control`` ends the sweep before the job begins."""
        raise NotImplementedError

    def next_sizes(self, found: SearchResult, limit: int | None) -> list[int]:
        """Return the sizes of the next launch of a search in ascending order; none if the search is over."""
        raise NotImplementedError

    def prepare(self, launches: Sequence[Sequence[Job]], control: LaunchControl) -> None:
        """Prepare all launches at once, if that saves time."""

    def finished(self, job: Job, also_implied: bool = True) -> Record | None:
        """Return the record of an earlier run that is still valid. ``also_implied``: accept implied records too."""
        return None if self.force else job.finished(self.machine, also_implied)

    def launches(self, jobs: Sequence[Job], isolation: str, seed: int) -> list[list[Job]]:
        """Group the jobs to run. Arguments as of :func:`group_into_launches`."""
        return group_into_launches(jobs, isolation, seed)

    def run(self, jobs: Sequence[Job], control: LaunchControl) -> list[Record]:
        """Run one launch. Returns the records of the jobs that are over, in order; ``control.on_record`` gets each."""
        return in_turn(jobs, control, lambda job: self.run_one(job, control))


def in_turn(jobs: Sequence[Job], control: LaunchControl, run_one: Callable[[Job], Record | None]) -> list[Record]:
    """Run jobs one after another, up to the first that does not end well or does not begin (``None``).

    Returns the records of the jobs that are over.
    """
    records: list[Record] = []
    for job in jobs:
        if (record := run_one(job)) is None:
            break
        records.append(record)
        control.on_record(job, record)
        if record.status != "ok":
            break
    return records


class RunningSweep:
    """The execution of a sweep. ``run`` returns a result for every job, also after an interruption."""

    def __init__(self, backend: Backend, options: Sweep, observer: SweepObserver):
        self.backend, self.options, self.observer = backend, options, observer
        self._prunes = options.prune and backend.prunes
        self.stop = threading.Event()
        self._control = LaunchControl(
            self.stop, self.over_budget, self._tell_ended, self._tell_waiting, self._tell_launched
        )
        self.interrupted = False
        self.results: dict[str, JobResult] = {}
        self._ooms: dict[str, list[JobResult]] = {}  # memory key -> out-of-memory results that were measured
        self._waits_told: set[str] = set()
        self._telling = threading.Lock()
        self._usd_per_hour = 0.0  # 0: its price is unknown
        self._began = time.monotonic()

    def run(self, jobs: Sequence[Job], seed: int = 0) -> list[JobResult]:
        self._usd_per_hour = usd_per_hour(jobs)
        end_orphans(jobs)
        found = self.schedule(jobs, seed)
        self.observer.began(found.launches, found.known)
        self._carry_out(found)
        return [self.results.get(str(job.folder), JobResult(job, None, "not reached")) for job in unique(jobs)]

    def _carry_out(self, found: Schedule) -> None:
        """Record the unsupported jobs and run the launches, up to an interruption."""
        for result in found.known:
            if result.how == "unsupported":
                result.record = self._record(result.job, "unsupported", result.reason)
            self._tell(result)
        try:
            self._run_all(found.launches)
        except KeyboardInterrupt:
            self.interrupted = True

    def schedule(self, jobs: Sequence[Job], seed: int = 0) -> Schedule:
        """Sort jobs into done, unsupported and launches to run. Only reads run folders; writes and starts nothing."""
        known, to_run = self._sort_out(unique(jobs))
        return Schedule(known, self.backend.launches(to_run, self.options.isolation, seed))

    def _sort_out(self, jobs: Iterable[Job], resumes: bool = True) -> tuple[list[JobResult], list[Job]]:
        """Return the results that are known before anything runs, and the jobs to run. ``resumes``: whether valid
        records of an earlier run are among the results."""
        known, to_run = [], []
        for job in jobs:
            if resumes and (record := self.backend.finished(job, self._prunes)):
                known.append(JobResult(job, record, "done"))
            elif reasons := self.backend.refusals(job):
                known.append(JobResult(job, None, "unsupported", "; ".join(reasons)))
            else:
                to_run.append(job)
        return known, to_run

    def _record(self, job: Job, status: str, reason: str) -> Record:
        """Return the record of a job that is not run.

        Writes the record to disk, unless writing fails or another memlab holds the folder: the job may end differently
        there. Raises the error of a full disk.
        """
        try:
            with locked(job) as mine:
                if mine:
                    return job.record_without_running(self.backend.machine, status, reason)
        except Exception as error:
            if is_full(error):
                raise
            status, reason = "failed", reason if status == "failed" else reason_of(error)
        return job.new_record(self.backend.machine, status, reason)

    def _run_all(self, launches: list[list[Job]]) -> None:
        if not self._control.must_end():
            self.backend.prepare(launches, self._control)
        if not self.backend.at_once:
            for group in launches:
                self._run_or_fail(group)
            return
        with ThreadPoolExecutor(self.backend.at_once, thread_name_prefix="launch") as executor:
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
                self._tell(JobResult(job, self._record(job, "failed", reason), self.backend.how))

    def _run_group(self, jobs: list[Job]) -> None:
        """Run the jobs of one configuration, with a new launch after each launch that ends early."""
        while jobs and not self._control.must_end():
            with ExitStack() as locks:
                mine = [job for job in jobs if locks.enter_context(locked(job))]
                elsewhere = [job for job in jobs if job not in mine]
                left = self._drop_known(mine)
                if left:
                    left = left[len(self.backend.run(left, self._control)) :]
            jobs = left + elsewhere
            if not mine:  # another memlab measures all remaining jobs: wait for its records
                who, others = jobs[0].folder.holder(), f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
                self._tell_waiting(
                    f"waiting for {jobs[0].folder}{others}: another memlab ({who}) measures there; "
                    "if it hangs, end it with kill PID, and this sweep goes on"
                )
                self.stop.wait(1.0)

    def _drop_known(self, jobs: list[Job]) -> list[Job]:
        """Drop jobs that another memlab has measured meanwhile, or that an out-of-memory implies."""
        left = []
        for job in jobs:
            if record := self.backend.finished(job, self._prunes):
                self._tell(JobResult(job, record, "done"))
            elif implied_by := self._implied_by(job):
                record = job.record_without_running(
                    self.backend.machine, implied_by.status, IMPLIED + implied_by.run_id
                )
                self._tell(JobResult(job, record, "implied"))
            else:
                left.append(job)
        return left

    def _implied_by(self, job: Job) -> Record | None:
        """Return an out-of-memory record of the same configuration whose batch and sequence are not larger."""
        known = self._ooms.get(job.memory_key, []) if self._prunes else []
        return next((result.record for result in known if job.is_implied_by(result.job)), None)

    def over_budget(self) -> str | None:
        """Name the limit of time or money that this sweep has reached; ``None`` if it has reached none."""
        options, hours = self.options, (time.monotonic() - self._began) / 3600
        if options.max_hours is not None and hours >= options.max_hours:
            return f"at sweep.max_hours={options.max_hours:g}"
        if options.max_usd is not None and hours * self._usd_per_hour >= options.max_usd:
            return f"at sweep.max_usd={options.max_usd:g}"
        return None

    def _tell_launched(self, jobs: Sequence[Job], gpu_ids: Sequence[str]) -> None:
        with self._telling:
            self.observer.launched(jobs, gpu_ids)

    def _tell_ended(self, job: Job, record: Record) -> None:
        self._tell(JobResult(job, record, self.backend.how))

    def _tell(self, result: JobResult) -> None:
        with self._telling:
            self.results[str(result.job.folder)] = result
            if (record := result.record) and record.status in OUT_OF_MEMORY and not record.is_implied:
                self._ooms.setdefault(result.job.memory_key, []).append(result)
            with suppress(OSError):  # a closed terminal must not end the sweep
                self.observer.finished(result)

    def _tell_waiting(self, text: str) -> None:
        with self._telling, suppress(OSError):
            if text not in self._waits_told:
                self._waits_told.add(text)
                self.observer.waiting(text)
