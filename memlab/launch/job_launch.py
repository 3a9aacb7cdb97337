"""Measurement of jobs: one launch measures one job, or several that differ only in shape. Each job gets a record."""

import math
import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from memlab.core.config import Sweep
from memlab.core.errors import MemlabError
from memlab.core.plan import shape_of
from memlab.core.record import Record
from memlab.files.build_locks import STALE_S, holder, old_locks, told
from memlab.launch.doctor.ops import unbuilt_ops
from memlab.launch.launch_control import LaunchControl
from memlab.launch.launcher_line import command, free_port
from memlab.launch.nodes import GpuPool, failed_node, for_nodes, takes_sigterm
from memlab.launch.orphans import exclusively, noted
from memlab.launch.outcome import host_oom_kills, outcome
from memlab.launch.process import Ended, Launch
from memlab.launch.search import CONFIRMATION, next_sizes
from memlab.launch.streams import ToLog
from memlab.launch.sweep import Backend, in_turn
from memlab.launch.user_command.measure import launch_command
from memlab.meters import install
from memlab.rules.unsupported import unsupported
from memlab.runs.job import Job, SearchResult
from memlab.runs.operator_profile import PROFILED_RANK, keep_operators
from memlab.runs.step_rows import caught_up, read_rows
from memlab.system.deadman import TOKEN_VARIABLE, marked
from memlab.system.environment import extensions_dir, rank_environment, sweep_stale_locks
from memlab.system.machine import Gpu, Machine
from memlab.system.shared_memory import remove_segments

EXIT_S = 60.0
"""Seconds that a launch with all its results may take to exit. DeepSpeed's processes sometimes never exit."""

FAILURE_S = 10.0
"""Seconds that the other nodes may go on after one has failed. Launchers for several nodes do not end them."""


NOT_STARTED = "stopped by a signal before it was started"


class Measuring(Backend):
    """The backend of a sweep that measures: launches run side by side if there are enough GPUs, commands in a launch
    each. ``options``: those of the sweep."""

    how = "measured"
    confirmation = CONFIRMATION

    def __init__(self, machine: Machine, options: Sweep, force: bool = False):
        super().__init__(force)
        self.machine, self._options = machine, options
        self.at_once = max(1, len(machine.gpus))
        self._pool = GpuPool(machine.gpus)

    def refusals(self, job: Job) -> list[str]:
        """Return why a job cannot run. With a quote nothing runs: its GPUs are those of ``hardware``."""
        return unsupported(job.config, None if self._options.guide == "quote" else self.machine)

    def run_alone(self, job: Job, on_wait: Callable[[str], None]) -> Record:
        with exclusively(job):
            if found := self.finished(job):
                return found
            if reasons := self.refusals(job):
                return job.record_without_running(self.machine, "unsupported", "; ".join(reasons))
            begun: list[Job] = []
            try:
                self.run([job], LaunchControl(on_wait=on_wait, on_launch=lambda jobs, gpu_ids: begun.extend(jobs)))
            except KeyboardInterrupt:
                if begun:
                    raise
                return job.record_without_running(self.machine, "interrupted", NOT_STARTED)
            return job.folder.read_record()

    def run(self, jobs: Sequence[Job], control: LaunchControl) -> list[Record]:
        alone = jobs[0].is_alone(self._options.side_by_side)
        with self._pool.take(jobs[0].gpus, alone, control) as gpus:
            if gpus is None:
                return []
            control.on_launch(jobs, [gpu.id for gpu in gpus])
            if jobs[0].config.is_command:
                return in_turn(jobs, control, lambda job: launch_command(job, self.machine, gpus, control))
            return measure_jobs(jobs, self.machine, gpus, control)

    def next_sizes(self, found: SearchResult, limit: int | None) -> list[int]:
        return list(next_sizes(found, limit))


def measure_jobs(jobs: Sequence[Job], machine: Machine, gpus: Sequence[Gpu], control: LaunchControl) -> list[Record]:
    """Measure jobs that differ only in shape in one launch on these GPUs, one after another.

    Returns one record for each job that was reached, in order. If the launch ended early, the last record says why.
    Every record is on disk as soon as its job is over. A failure of a port or of the network is retried once.
    """
    records = _JobsLaunch(jobs, machine, gpus, control, tries_again=True).run()
    if _is_worth_another_try(records[-1], control):
        again = _JobsLaunch(jobs[len(records) - 1 :], machine, gpus, control, tries_again=False)
        return [*records[:-1], *again.run()]
    return records


def _is_worth_another_try(record: Record, control: LaunchControl) -> bool:
    return record.status == "infra" and not control.must_end()


class _JobsLaunch:
    """One launch of jobs. ``tries_again``: whether another launch follows if a port or the network fails."""

    def __init__(
        self, jobs: Sequence[Job], machine: Machine, gpus: Sequence[Gpu], control: LaunchControl, tries_again: bool
    ):
        self.jobs, self.machine, self.control, self.tries_again = jobs, machine, control, tries_again
        self.plan, self.log = jobs[0].plan, jobs[0].folder.launcher_log
        self.world_size = self.plan.world_size
        on_gpus = jobs[0].config.hardware.device == "cuda"
        self.gpu_ids = [gpu.id for gpu in gpus[: self.plan.ranks_per_node]] if on_gpus else []
        self.token = uuid.uuid4().hex
        self.records: list[Record] = []
        self.reached_at = [0.0]  # 0, then the seconds from the start of the launch to the end of each job
        self.look_for_locks_at = STALE_S  # seconds from the start of the launch
        self.is_started = False  # until then, files in the run folders belong to an earlier run
        self.survivors: list[int] = []
        self.ended_between_jobs = False  # by a reason to end

    def run(self) -> list[Record]:
        kills = host_oom_kills()
        began = time.monotonic()
        try:
            ended = self._launch()
        except KeyboardInterrupt:
            ended = Ended("interrupted", None, time.monotonic() - began)
        if not self.is_started:
            return [self.jobs[0].record_without_running(self.machine, "interrupted", NOT_STARTED)]
        try:
            self._finish(ended, kills)
        except KeyboardInterrupt:  # only the first signal raises, so this call runs to its end
            self._finish(ended, kills)
        for job in self.jobs[: len(self.records)]:
            try:
                keep_operators(job.folder, PROFILED_RANK)
            except MemlabError as error:  # the record is there, and so is the profile
                self.control.on_wait(str(error))
        return self.records

    def _finish(self, ended: Ended, kills: int) -> None:
        """Write the missing records, note survivors in the last one, and stop the sweep because of them.

        ``kills``: processes that the kernel had killed for memory before the launch.
        """
        self._collect(ended.seconds)
        if len(self.records) < len(self.jobs) and not self.ended_between_jobs:
            self._close(ended, host_oom_kills() - kills)
        if self.survivors:  # they may still hold memory, which would change every later measurement
            self.control.stop.set()
            record = self.records[-1]
            remark = f"processes {self.survivors} could not be killed and may still hold memory"
            record.reason = f"{record.reason}; {remark}" if record.reason else remark
            self.jobs[len(self.records) - 1].folder.finish(record)

    def _launch(self) -> Ended:
        """Start the ranks, wait for them, and end all that are left."""
        sweep_stale_locks()
        if ops := unbuilt_ops(self.plan):
            self.control.on_wait(f"building DeepSpeed's {', '.join(ops)}, once for these versions: this takes minutes")
        plan, port, token = self.plan, free_port(), self.token
        words = command(plan, [job.folder for job in self.jobs], self.gpu_ids, port)
        for job in self.jobs:
            job.start(words)
            install.remove(job.folder.path)
        self.is_started = True
        environment = rank_environment(plan, self.machine)
        environment |= {"MEMLAB_STARTED_AT": repr(time.time()), TOKEN_VARIABLE: token}
        if not plan.is_multi_node:
            environment["MEMLAB_LIFELINE"] = f"pid:{os.getpid()}"
        with ExitStack() as stack:
            # this and remove_segments end last, when no rank is left
            stack.enter_context(noted([job.folder for job in self.jobs], token, port))
            stack.callback(remove_segments, port)
            environment = stack.enter_context(for_nodes(plan, self.machine, environment, port))
            launch = stack.enter_context(Launch(words, environment, ToLog(self.log), token, takes_sigterm(plan)))
            ended = launch.wait(self._deadline, lambda: self._linger(launch.seconds), self.control)
        self.survivors = launch.survivors
        return ended

    def _deadline(self) -> float:
        """Return the time limit of the current job, in seconds since the launch began.

        The limit of each job starts when the previous job has finished.
        """
        index = min(len(self.records), len(self.jobs) - 1)
        return self.reached_at[-1] + self.jobs[index].config.measure.timeout_s

    def _linger(self, now: float) -> float | None:
        """Return the seconds that the launch may still take; ``None`` while results are expected."""
        has_failed = self._collect(now)
        self._name_locks(now)
        if self.ended_between_jobs:
            return 0.0
        if len(self.records) == len(self.jobs):
            return EXIT_S
        return FAILURE_S if self.plan.is_multi_node and (has_failed or failed_node(self.log)) else None

    def _name_locks(self, now: float) -> None:
        """Name the locks that the ranks wait for, once: those that no process of this launch holds."""
        if now > self.look_for_locks_at:
            others = [lock for lock in old_locks(extensions_dir()) if holder(lock) not in set(marked(self.token))]
            locks = [lock for lock in others if lock.exists()]  # a lock that was just released has no holder
            self.look_for_locks_at = math.inf if locks else now + STALE_S
            for lock in locks:
                self.control.on_wait(told(lock))

    def _collect(self, now: float) -> bool:
        """Write the records of jobs that all ranks have finished. Returns whether a rank of the next job has failed."""
        while len(self.records) < len(self.jobs) and not self.ended_between_jobs:
            ranks = self.jobs[len(self.records)].folder.read_ranks(self.world_size)
            ended = [rank for rank in ranks if rank["status"] != "interrupted"]
            failed = any(rank["status"] != "ok" for rank in ended)
            if failed or len(ended) < self.world_size:
                return failed
            self._write(ranks, "ok", None, now)
            self.ended_between_jobs = bool(self.control.reason_to_end())
        return False

    def _close(self, ended: Ended, host_ooms: int) -> None:
        """Write the record of the job that was running when the launch ended."""
        folder = self.jobs[len(self.records)].folder
        ranks = [
            caught_up(rank, read_rows(folder.step_rows(rank["rank"])), self.plan.config.measure.warmup)
            for rank in folder.read_ranks(self.world_size)
        ]
        if self.plan.is_multi_node and ended.how == "exited":
            ended = replace(ended, returncode=failed_node(self.log) or ended.returncode)
        status, reason = outcome(folder, ranks, ended, host_ooms, self.world_size)
        self._write(ranks, status, reason, ended.seconds)

    def _write(self, ranks: list[dict[str, Any]], status: str, reason: str | None, now: float) -> None:
        job = self.jobs[len(self.records)]
        isolation = "shared" if len(self.jobs) > 1 else "fresh"
        total_s = now - self.reached_at[-1]
        self.reached_at.append(now)
        before = [list(shape_of(earlier.config)) for earlier in self.jobs[: len(self.records)]]
        outcome = {"status": status, "reason": reason, "isolation": isolation, "before_in_launch": before}
        record = job.measured_record(self.machine, ranks, total_s, **outcome)
        install.remove(job.folder.path)
        job.folder.finish(record)
        self.records.append(record)
        if not (self.tries_again and _is_worth_another_try(record, self.control)):
            self.control.on_record(job, record)
