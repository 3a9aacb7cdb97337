"""A whole sweep: every job gets a record, in as few launches as possible, whatever happens on the way.

Jobs that are done are skipped, meaningless ones are recorded with their reason. The rest are gathered into launches
(jobs that differ in shape alone share one, smallest first), which run side by side where there are GPUs for it. An
out-of-memory ends its launch; larger jobs of the same configuration are then recorded as implied, and the others go on
in a fresh one.
"""

import random
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from memlab.config import Sweep
from memlab.launch.job import IMPLIED, Job, is_implied
from memlab.launch.pool import GpuPool
from memlab.launch.run import Control, launch_jobs
from memlab.machine import Machine
from memlab.record import FINAL, Record
from memlab.rules import unsupported

JOBS_PER_LAUNCH = 64
"""More share a launch's start-up so thinly that it no longer matters, and each holds a lock."""


@dataclass
class Result:
    """One job of a sweep. ``how``: measured, predicted, done (by an earlier run), implied, unsupported, not reached."""

    job: Job
    record: Record | None
    how: str


class Observer:
    """What a sweep tells while it runs. Methods may be called from several threads, one at a time."""

    def began(self, to_run: Sequence[Sequence[Job]], known: Sequence[Result]) -> None: ...
    def launched(self, jobs: Sequence[Job], gpu_ids: Sequence[str]) -> None: ...
    def finished(self, result: Result) -> None: ...


@dataclass
class Assortment:
    """What is known of the jobs before anything runs."""

    known: list[Result] = field(default_factory=list)
    launches: list[list[Job]] = field(default_factory=list)


def assort(jobs: Iterable[Job], machine: Machine, options: Sweep, force: bool, seed: int = 0) -> Assortment:
    """Done, unsupported, or to run in which launch. Reads run folders; writes and starts nothing."""
    found = Assortment()
    to_run = []
    for job in _unique(jobs):
        if not force and (record := job.finished(machine, options.prune)):
            found.known.append(Result(job, record, "done"))
        elif unsupported(job.config, machine):
            found.known.append(Result(job, None, "unsupported"))
        else:
            to_run.append(job)
    found.launches = gather(to_run, options.isolation, seed)
    return found


def gather(jobs: Sequence[Job], isolation: str, seed: int) -> list[list[Job]]:
    """Jobs by launch, smallest first within one. Repeats of a job come in later rounds, each in an order of its own."""
    rounds: dict[int, dict[str, list[Job]]] = {}
    for index, job in enumerate(jobs):
        shares = isolation == "shared" and job.config.measure.protocol != "cold"
        key = job.engine_key if shares else f"{job.engine_key}-{index}"
        rounds.setdefault(job.config.measure.repeat, {}).setdefault(key, []).append(job)
    shuffle = random.Random(seed).shuffle
    launches = []
    for repeat, groups in sorted(rounds.items()):
        ordered = [sorted(group, key=lambda job: job.size) for group in groups.values()]
        if repeat > 1 or len(rounds) > 1:
            shuffle(ordered)
        launches += [group[i : i + JOBS_PER_LAUNCH] for group in ordered for i in range(0, len(group), JOBS_PER_LAUNCH)]
    return launches


class SweepRun:
    """The execution of a sweep. ``run`` returns a result for every job, and does so after an interruption as well."""

    def __init__(self, machine: Machine, options: Sweep, force: bool, observer: Observer):
        self.machine, self.options, self.force, self.observer = machine, options, force, observer
        self.pool = GpuPool(machine.gpus)
        self.stop = threading.Event()
        self.interrupted = False
        self.results: dict[str, Result] = {}
        self._telling = threading.Lock()
        self._began = time.monotonic()

    def run(self, jobs: Sequence[Job], seed: int = 0) -> list[Result]:
        rates = (job.config.hardware.total_usd_per_hour for job in jobs)
        self._usd_per_hour = next((rate for rate in rates if rate is not None), 0.0)
        found = assort(jobs, self.machine, self.options, self.force, seed)
        self.observer.began(found.launches, found.known)
        for result in found.known:
            if result.how == "unsupported":
                reason = "; ".join(unsupported(result.job.config, self.machine))
                result.record = result.job.record_without_running(self.machine, "unsupported", reason)
            self._tell(result)
        try:
            self._run_all(found.launches)
        except KeyboardInterrupt:
            self.interrupted = True
        return [self.results.get(str(job.folder), Result(job, None, "not reached")) for job in _unique(jobs)]

    def _run_all(self, launches: list[list[Job]]) -> None:
        threads = max(1, len(self.machine.gpus))
        with ThreadPoolExecutor(threads, thread_name_prefix="launch") as executor:
            try:
                futures = [executor.submit(self._run_group, group) for group in launches]
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            except BaseException:
                self.stop.set()
                raise

    def _run_group(self, jobs: list[Job]) -> None:
        """Jobs of one configuration, in as many launches as their ends take."""
        while jobs and not self.stop.is_set() and not self.over_budget():
            with ExitStack() as locks:
                mine = [job for job in jobs if locks.enter_context(job.folder.lock())]
                elsewhere = [job for job in jobs if job not in mine]
                left = self._drop_known(mine)
                if left:
                    left = left[self._launch(left) :]
            jobs = left + elsewhere
            if not mine:  # another memlab measures all that is left: its records will do
                self.stop.wait(1.0)

    def _launch(self, jobs: list[Job]) -> int:
        """One launch. Returns how many of the jobs it has brought to an end."""
        on_gpus = jobs[0].config.hardware.device == "cuda"
        with self.pool.take(jobs[0].plan.ranks_per_node * on_gpus, self._alone(jobs[0]), self.stop) as gpus:
            if gpus is None:
                return 0
            with self._telling:
                self.observer.launched(jobs, [gpu.id for gpu in gpus])
            control = Control(self.stop, self.over_budget, self._tell_measured)
            return len(launch_jobs(jobs, self.machine, gpus, control))

    def _drop_known(self, jobs: list[Job]) -> list[Job]:
        """Without the jobs that another memlab has measured meanwhile, or that an out-of-memory has decided."""
        left = []
        for job in jobs:
            if not self.force and (record := job.finished(self.machine, self.options.prune)):
                self._tell(Result(job, record, "done"))
            elif implied_by := self._implied_by(job):
                record = job.record_without_running(self.machine, "gpu_oom", IMPLIED + implied_by.run_id)
                self._tell(Result(job, record, "implied"))
            else:
                left.append(job)
        return left

    def _implied_by(self, job: Job) -> Record | None:
        """A record out of memory at no larger batch and no longer sequence of the same configuration."""
        if not self.options.prune:
            return None
        for result in list(self.results.values()):
            if result.record is None or result.record.status != "gpu_oom" or is_implied(result.record):
                continue
            smaller, config = result.job.config, job.config
            if (
                result.job.engine_key == job.engine_key
                and smaller.batch.micro <= config.batch.micro
                and smaller.seq_len.tokens <= config.seq_len.tokens
            ):
                return result.record
        return None

    def _alone(self, job: Job) -> bool:
        """Whether other launches beside it would change its speed: an offloaded optimizer wants the whole host.

        The pool knows nothing of other nodes' GPUs, so a launch on several nodes is always alone.
        """
        if job.config.hardware.device == "cpu" or job.plan.is_multi_node:
            return True
        if self.options.side_by_side == "auto":
            return (job.config.offload.optimizer, job.config.offload.param) != ("none", "none")
        return self.options.side_by_side == "never"

    def over_budget(self) -> bool:
        """Whether the time or the money for this sweep is spent."""
        hours = (time.monotonic() - self._began) / 3600
        options = self.options
        return (options.max_hours is not None and hours >= options.max_hours) or (
            options.max_usd is not None and self.usd() >= options.max_usd
        )

    def usd(self) -> float:
        """What the hardware has cost since the sweep began; 0 where its price is not known."""
        return (time.monotonic() - self._began) / 3600 * self._usd_per_hour

    def _tell_measured(self, job: Job, record: Record) -> None:
        self._tell(Result(job, record, "measured"))

    def _tell(self, result: Result) -> None:
        with self._telling:
            self.results[str(result.job.folder)] = result
            with suppress(OSError):  # a terminal that went away must not end the measuring
                self.observer.finished(result)


def is_complete(results: Iterable[Result]) -> bool:
    """Whether every job has a record that would come out the same again."""
    return all(result.record is not None and result.record.status in FINAL for result in results)


def _unique(jobs: Iterable[Job]) -> list[Job]:
    """Hydra runs equal points twice; here a folder is run once."""
    return list({str(job.folder): job for job in jobs}.values())
