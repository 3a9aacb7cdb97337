"""Many predictions at once: their traces from one shadow process, their replays on all cores."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any

from memlab.config import from_dict
from memlab.errors import reason_of
from memlab.plan import Plan
from memlab.predict import cache
from memlab.predict.calibration import calibration_for
from memlab.predict.memory import Estimate, estimate
from memlab.predict.predict import predict

KILLED = "the process that replayed it was killed, as the system does when memory runs out"
"""In place of an estimate."""


class Together:
    """To be used with ``with``. ``told`` hears what is done: ("tracing", 3, 12).

    Everything that was traced is on the disk at once, so what is interrupted goes on where it was.
    """

    def __init__(self, told: Callable[[str, int, int], None]):
        self._told = told
        self._pool = _pool()

    def __enter__(self) -> "Together":
        return self

    def __exit__(self, *exception) -> None:
        self._pool.shutdown(cancel_futures=True)

    def prepare(self, plans: Sequence[Plan]) -> None:
        """Trace what is missing of ``plans``, and fit what their calibrations lack: once, and not in every process.

        What cannot be traced is tried again, and told, when its estimate is asked for.
        """
        for plan in plans:
            calibration_for(from_dict(plan.config))
        cache.make_missing(plans, partial(self._told, "tracing"))

    def estimates(self, plans: Sequence[Plan], limited: bool = True) -> list[Estimate | str]:
        """An estimate for each plan, or why there is none."""
        replayed = partial(_estimate, limited=limited)
        found = dict(enumerate(self._map(replayed, plans, KILLED)))
        while missing := {number: plans[number] for number, outcome in found.items() if outcome is None}:
            failed = dict(cache.make_missing(missing.values(), partial(self._told, "tracing")))
            found |= zip(missing, self._map(replayed, list(missing.values()), KILLED), strict=True)
            for number, plan in missing.items():  # what neither is there nor failed could not be computed, and is next
                found[number] = found[number] or failed.get(cache.trace_folder(plan))
        return [found[number] for number in range(len(plans))]

    def summaries(self, plans: Sequence[Plan]) -> list[dict[str, Any]]:
        """What the records of predicted runs sum up."""
        return self._map(_summary, plans, {})

    def _map(self, function: Callable[[Plan], Any], plans: Sequence[Plan], killed: Any) -> list[Any]:
        """``killed``: the result for a plan whose replay gets its process killed."""
        results = []
        for result in self._results(function, plans, killed):
            results.append(result)
            self._told("replaying", len(results), len(plans))
        return results

    def _results(self, function: Callable[[Plan], Any], plans: Sequence[Plan], killed: Any) -> Iterator[Any]:
        """In the order of ``plans``. A process that is killed ends its pool. A new pool then replays the first plan
        without a result alone, which shows whether it is the one to blame, and goes on with the others."""
        done = 0
        while done < len(plans):
            try:
                for result in self._pool.map(function, plans[done:], chunksize=2):  # one configuration's come together
                    done += 1
                    yield result
            except BrokenProcessPool:
                self._pool = _pool()
                yield self._alone(function, plans[done], killed)
                done += 1

    def _alone(self, function: Callable[[Plan], Any], plan: Plan, killed: Any) -> Any:
        try:
            return self._pool.submit(function, plan).result()
        except BrokenProcessPool:
            self._pool = _pool()
            return killed


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        len(os.sched_getaffinity(0)),
        get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )


def _estimate(plan: Plan, limited: bool) -> Estimate | str | None:
    """``None`` where a trace is missing. An exception ends this estimate alone: the reason is in its place."""
    try:
        traces = cache.known_traces(plan)
        return None if traces is None else estimate(from_dict(plan.config), traces.values(), limited)
    except Exception as error:
        return reason_of(error)


def _summary(plan: Plan) -> dict[str, Any]:
    """Empty where the prediction failed: then nothing of it is known."""
    try:
        return predict(plan).summary
    except Exception:
        return {}
