"""Many predictions at once: one shadow process makes their traces, and their replays run on all cores."""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from typing import Any

from memlab.core.basis import EXACT, Basis
from memlab.core.errors import reason_of
from memlab.core.plan import Plan
from memlab.planner.search import Outcome, Predictor, Progress
from memlab.prediction.memory.rank_results import estimate, needs
from memlab.prediction.prediction import predict
from memlab.prediction.time.calibrate import calibrations_of
from memlab.prediction.time.step_time import predict_step_time
from memlab.prediction.traces.choose_traces import known_traces, trace_missing, traces
from memlab.prediction.traces.store import trace_folder

KILLED = "the process that replayed it was killed, as the system does when memory runs out"
"""Reason in place of an estimate."""


class ParallelPredictor(Predictor):
    """Predictor of memlab's own training. An estimate of any size is fast."""

    def __init__(self, on_progress: Progress):
        super().__init__(on_progress)
        self._pool = _pool()

    def __exit__(self, *exception) -> None:
        self._pool.shutdown(cancel_futures=True)

    def prepare(self, plans: Sequence[Plan]) -> None:
        """Make the missing traces of ``plans`` and fit their calibrations once, not in every process.

        A trace that fails here is tried again when its estimate is requested, which then reports the reason.
        """
        for plan in plans:
            calibrations_of(plan.config)
        trace_missing(plans, partial(self._on_progress, "tracing"))

    def estimates(self, plans: Sequence[Plan], limited: bool = True) -> list[Outcome]:
        replayed = partial(_estimate, limited=limited)
        found = dict(enumerate(self._map(replayed, plans, KILLED)))
        while missing := {number: plans[number] for number, outcome in found.items() if outcome is None}:
            failed = trace_missing(missing.values(), partial(self._on_progress, "tracing"))
            found |= zip(missing, self._map(replayed, list(missing.values()), KILLED), strict=True)
            for number, plan in missing.items():  # neither estimated nor failed: trace it in the next round
                found[number] = found[number] or failed.get(trace_folder(plan))
        return [found[number] for number in range(len(plans))]

    def summaries(self, plans: Sequence[Plan]) -> list[tuple[dict[str, Any], Basis]]:
        return self._map(_summary, plans, NO_SUMMARY)

    def outlooks(self, plans: Sequence[Plan]) -> list[tuple[dict[str, Any], Basis]]:
        """Predict verdict and step time alone, without the replays that other figures of a record need."""
        return self._map(_outlook, plans, NO_SUMMARY)

    def _map(self, function: Callable[[Plan], Any], plans: Sequence[Plan], killed: Any) -> list[Any]:
        """Apply ``function`` to the plans on all cores and report progress. ``killed``: the result for a plan whose
        replay gets its process killed.

        Such a process ends its pool. A new pool then replays the first plan without a result alone, which shows whether
        this plan is the cause, and goes on with the others.
        """
        results: list[Any] = []

        def add(result: Any) -> None:
            results.append(result)
            self._on_progress("replaying", len(results), len(plans))

        while len(results) < len(plans):
            try:
                for result in self._pool.map(function, plans[len(results) :], chunksize=2):  # neighbours share traces
                    add(result)
            except BrokenProcessPool:
                self._pool = _pool()
                try:
                    add(self._pool.submit(function, plans[len(results)]).result())
                except BrokenProcessPool:
                    self._pool = _pool()
                    add(killed)
        return results


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        len(os.sched_getaffinity(0)),
        get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )


def _estimate(plan: Plan, limited: bool) -> Outcome | None:
    """Estimate a plan; ``None`` where a trace is missing. An exception ends this estimate alone, and its reason is
    returned."""
    try:
        traces = known_traces(plan)
        judge = estimate if limited else needs
        return None if traces is None else judge(plan.config, list(traces.values()), calibrations_of(plan.config).host)
    except Exception as error:
        return reason_of(error)


NO_SUMMARY: tuple[dict[str, Any], Basis] = ({}, EXACT)
"""In place of a prediction that failed."""


def _summary(plan: Plan) -> tuple[dict[str, Any], Basis]:
    with suppress(Exception):
        record = predict(plan)
        return record.summary, record.basis
    return NO_SUMMARY


def _outlook(plan: Plan) -> tuple[dict[str, Any], Basis]:
    with suppress(Exception):
        calibrations, found = calibrations_of(plan.config), traces(plan)
        verdict = estimate(plan.config, found.values(), calibrations.host).verdict
        step = predict_step_time(plan.config, found, calibrations.step)
        seconds = {"step_seconds_mean": step.seconds} if step else {}
        return {"verdict": verdict, **seconds}, step.basis if step else EXACT
    return NO_SUMMARY
