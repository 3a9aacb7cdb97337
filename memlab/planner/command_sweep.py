"""Many sizes of a command of the user's own, predicted: sweeps, searches, and the estimates of ``memlab plan``.

Each size runs the command's script on simulated GPUs, as many at once as this host has room for. The largest size that
fits is computed from the traces of the sizes that were run.
"""

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import Any

from memlab.core.basis import Basis
from memlab.core.config import Config, Sweep
from memlab.core.plan import Plan, size_of
from memlab.core.record import FITS, Record
from memlab.launch.launch_control import LaunchControl
from memlab.launch.search import LIMITS, at_size, precision
from memlab.launch.sweep import Backend, RunningSweep
from memlab.planner.command_point import KEY, kept_folder, predict_point, prediction_key
from memlab.planner.parallel import ParallelPredictor
from memlab.planner.search import Outcome, Predictor, Progress, fits, next_size, outcome_of
from memlab.planner.user_command import PROCESSES
from memlab.prediction.memory.rank_results import estimate
from memlab.prediction.not_predicted import unpredictable
from memlab.prediction.run_command import traces_in
from memlab.prediction.time.calibrate import calibrations_of
from memlab.prediction.traces.interpolate import CHECKED, MINIMUM_TOKENS, Interpolator
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job, JobResult, SearchResult, SweepObserver
from memlab.simulator.trace.trace_format import Traces
from memlab.system.sandbox.limits import free_host_memory

ONE_LENGTH = MINIMUM_TOKENS
"""Tokens of all traces, for the interpolation: the size alone varies, be it a micro batch or a length."""


def largest_interpolated(
    records: Mapping[int, Record], folder_of: Callable[[int], RunFolder], low: int, high: int
) -> int | None:
    """Return the largest size that fits, from ``low``, which does, to below ``high``, which does not.

    ``records``: of the sizes that were run; ``folder_of``: size -> its run folder. ``None`` where the traces do not
    determine those of other sizes: every request for memory must follow one formula, which two sizes give and a third
    confirms (traces/interpolate.py).
    """
    config = records[low].config
    traces = {size: traces_in(folder_of(size).path) for size, record in records.items() if record.status == "ok"}
    is_shared = any(trace.beside for each in traces.values() for trace in each.values())  # bytes of one size alone
    if len(traces) < CHECKED or not all(traces.values()) or is_shared:
        return None
    ranks = _by_rank(traces)
    calibration = calibrations_of(config).host
    while high - low > 1:
        size = min(max(isqrt(low * high), low + 1), high - 1)
        at_size = [interpolator.at(size, ONE_LENGTH) for interpolator in ranks]
        known = [trace for trace in at_size if trace is not None]
        if len(known) < len(at_size):
            return None
        low, high = (size, high) if estimate(config, known, calibration).verdict == FITS else (low, size)
    return low


def _by_rank(traces: Mapping[int, Traces]) -> Sequence[Interpolator]:
    """Return the interpolator of each rank. The largest size leads: kernels may work otherwise at small ones."""
    largest_first = sorted(traces.items(), reverse=True)
    return [
        Interpolator([replace(each[rank], micro=size, tokens=ONE_LENGTH) for size, each in largest_first])
        for rank in sorted(set.intersection(*map(set, traces.values())))
    ]


MARGIN = 1.25
"""Memory that a further prediction must find, as a multiple of what one took so far: a larger batch takes more."""

POLL_S = 0.2


class ShadowSlots:
    """Lets several predictions run at once: as many as the cores carry, and the host's memory.

    The memory of a prediction is not known before one has ended, so the first runs alone.
    """

    def __init__(self) -> None:
        self.most = max(1, len(os.sched_getaffinity(0)) // PROCESSES)
        self._free_at_rest = free_host_memory()
        self._running = self._ended = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, give_up: Callable[[], bool]) -> Iterator[bool]:
        """Hold a slot while the block runs. Yields false, without a slot, once ``give_up`` returns true."""
        with self._changed:
            while not (given_up := give_up()) and self._running >= self._room():
                self._changed.wait(POLL_S)
            self._running += not given_up
        try:
            yield not given_up
        finally:
            with self._changed:
                self._running -= not given_up
                self._ended += not given_up
                self._changed.notify_all()

    def _room(self) -> int:
        largest_child_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # Linux: KiB
        if not self._ended or not largest_child_bytes:  # a prediction that was copied has no processes
            return 1
        return max(1, min(self.most, int(self._free_at_rest / (PROCESSES * MARGIN * largest_child_bytes))))


class CommandPredictions(Backend):
    """The backend of a sweep that predicts commands. Predicted memory shows a search how far to go, so few sizes run.

    ``slots``: those of several sweeps, one after another; they know how much memory a prediction takes.
    """

    def __init__(self, force: bool = False, slots: ShadowSlots | None = None):
        super().__init__(force)
        self._slots = slots or ShadowSlots()
        self.at_once = self._slots.most

    def finished(self, job: Job, also_implied: bool = True) -> Record | None:
        """Return the record in the job's folder if the same predictor made it, else ``None``."""
        found = super().finished(job, also_implied)
        return found if found and found.environment.get(KEY) == prediction_key(job.plan) else None

    def refusals(self, job: Job) -> list[str]:
        return unpredictable(job.config)

    def run_alone(self, job: Job, on_wait: Callable[[str], None]) -> Record:
        (result,) = RunningSweep(self, job.config.sweep, SweepObserver()).run([job])
        if result.record is None:  # interrupted before it began
            raise KeyboardInterrupt
        return result.record

    def run_one(self, job: Job, control: LaunchControl) -> Record | None:
        with self._slots.take(control.must_end) as taken:
            return predict_point(job, control, self.force) if taken else None

    def next_sizes(self, found: SearchResult, limit: int | None) -> list[int]:
        kind = found.job.config.sweep.search
        tried = {size: outcome_of(record) for size, record in found.tried.items()}
        computed = partial(largest_interpolated, found.tried, lambda size: at_size(found.job, size).folder)
        step = precision(kind, found.fits)
        size = next_size(tried, limit or LIMITS[kind], size_of(found.job.config), step, computed)
        return [] if size is None else [size]


class CommandPredictor(Predictor, SweepObserver):
    """Predictor of commands: each size runs the script, in a sweep that the predictor observes. Every prediction stays
    in the user's cache."""

    def __init__(self, on_progress: Progress):
        super().__init__(on_progress)
        self._slots = ShadowSlots()

    def estimates(self, plans: Sequence[Plan], limited: bool = True) -> list[Outcome]:
        records = self._records(plans)
        found = [outcome_of(record) for record in records]
        for number, outcome in enumerate(found) if not limited else ():
            if not isinstance(outcome, str) and not fits(outcome):  # what it needs is in its traces
                config, traces = records[number].config, traces_in(kept_folder(plans[number]).path).values()
                needed = estimate(config, traces, calibrations_of(config).host, limited=False)
                found[number] = replace(needed, verdict=outcome.verdict)
        return found

    def largest(self, plan_at: Callable[[int], Plan], sizes: Sequence[int], low: int, high: int) -> int | None:
        """Compute the largest size that fits, where the sizes that ran determine all others."""
        records = dict(zip(sizes, self._records([plan_at(size) for size in sizes]), strict=True))
        return largest_interpolated(records, lambda size: kept_folder(plan_at(size)), low, high)

    def summaries(self, plans: Sequence[Plan]) -> list[tuple[dict[str, Any], Basis]]:
        return [(record.summary, record.basis) for record in self._records(plans)]

    def _records(self, plans: Sequence[Plan]) -> list[Record]:
        jobs = [Job(plan, kept_folder(plan)) for plan in plans]
        self._done, self._of = 0, len(jobs)
        sweep = RunningSweep(CommandPredictions(slots=self._slots), Sweep(prune=False), self)
        results = {str(result.job.folder): result.record for result in sweep.run(jobs) if result.record}
        if sweep.interrupted:
            raise KeyboardInterrupt
        return [results[str(job.folder)] for job in jobs]

    def finished(self, result: JobResult) -> None:
        self._done += 1
        self._on_progress("predicting", self._done, self._of)


def predictor_of(config: Config, on_progress: Progress) -> Predictor:
    """Make the predictor of a configuration: of a command, or of memlab's own training."""
    return (CommandPredictor if config.is_command else ParallelPredictor)(on_progress)
