"""Step time of a prediction: the seconds, the error they may have, and when they are only a lower bound."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from memlab.core.config import Config
from memlab.predict.time.calibration import Calibration
from memlab.predict.time.clocks import LOWER_BOUND, has_clocks, step_seconds
from memlab.predict.time.cost_fit import depends_on_undetermined, spends_time_on
from memlab.predict.trace.trace_format import Trace
from memlab.predict.trace.work_items import Item

CALIBRATED = "calibrated"
BOUND = "lower bound"

OWN_PYTHON = "the costs are those of memlab's own training, and what a script does between its operators is not counted"


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step. ``seconds_range``: for nine in ten configurations that the calibration had not seen, the
    measured time was within this range; its end is ``None`` for a lower bound. ``error``: the calibration's errors, as
    shares of ``seconds``."""

    seconds: float
    seconds_range: tuple[float, float | None]
    lower_bound: float  # seconds at full datasheet speed, with a host that takes no time
    basis: str  # CALIBRATED or BOUND
    why: str | None = None  # why it is a lower bound, or why the error may be larger
    error: dict[str, float] | None = None
    calibration: str | None = None  # digest of the calibration

    def of_a_script(self, seconds: float) -> "StepTime":
        """Return a lower bound for a step of a script that takes ``seconds`` by the same costs."""
        bound = self.lower_bound * seconds / self.seconds
        why = self.why if self.basis == BOUND else OWN_PYTHON
        return StepTime(seconds, (seconds, None), bound, BOUND, why, calibration=self.calibration)

    def steps(self) -> dict[str, Any]:
        """Return the fields of ``Record.steps``."""
        return {
            "seconds": [self.seconds],
            "basis": self.basis,
            "basis_reason": self.why,
            "error": self.error,
            "calibration": self.calibration,
        }

    def summary(self) -> dict[str, Any]:
        """Return the fields of ``Record.summary`` that do not follow from ``seconds``."""
        low, high = self.seconds_range
        return {
            "step_seconds_min": low,
            "step_seconds_max": high,
            "step_seconds_lower_bound": self.lower_bound,
            "step_seconds_basis": self.basis,
        }

    def timing(self) -> dict[str, Any]:
        """Return the fields of ``Record.timing``."""
        return {
            "step_s": self.seconds,
            "step_s_range": list(self.seconds_range),
            "step_s_lower_bound": self.lower_bound,
        }


def predict_step_time(config: Config, traces: Mapping[int, Trace], calibration: Calibration | None) -> StepTime | None:
    """Predict the step time; ``None`` where the hardware entry lacks speeds or the work of the step is unknown.

    ``calibration``: ``None`` gives the lower bound.
    """
    if not has_clocks(config, traces.values()):
        return None
    bound = step_seconds(config, traces, LOWER_BOUND)
    if calibration is None:
        why = f"no calibration for {config.hardware.gpu}"
        return StepTime(bound, (bound, None), bound, BOUND, why if config.hardware.nodes == 1 else "several nodes")
    seconds = step_seconds(config, traces, calibration.costs)
    known = StepTime(
        seconds,
        _within_error(seconds, bound, calibration.error["p90"]),
        bound,
        CALIBRATED,
        calibration=calibration.digest,
    )
    if depends_on_undetermined(config, traces, calibration.costs, calibration.undetermined):
        why = f"it depends on what was not calibrated ({', '.join(calibration.undetermined)})"
        return replace(known, seconds_range=(seconds, None), basis=BOUND, why=why)
    alone = spends_time_on(config, traces, calibration.costs, calibration.determined_once)
    why = (
        f"only one configuration determines {', '.join(calibration.determined_once)}, so the error may be larger"
        if alone
        else None
    )
    return replace(known, error=calibration.error, why=why)


def predict_steps(
    config: Config, traces: Mapping[int, Trace], calibration: Calibration | None
) -> tuple[dict[int, float], StepTime | None]:
    """Predict the steps of a command, which may differ.

    Returns step, from 1 -> its seconds, for each step whose work all traces have, and the median of the usual steps.
    Without speeds, or without a step whose work is known on all ranks: no seconds, and ``None``.
    """
    if not has_clocks(config, traces.values()):
        return {}, None
    works = {rank: _work_by_step(trace) for rank, trace in traces.items()}
    steps = {
        step: {rank: replace(trace, work=works[rank][step]) for rank, trace in traces.items()}
        for step in sorted(set.intersection(*map(set, works.values())))
    }
    if not steps:
        return {}, None
    costs = LOWER_BOUND if calibration is None else calibration.costs
    seconds = {step: step_seconds(config, work, costs) for step, work in steps.items()}
    usual = sorted(usual_steps(traces, seconds), key=seconds.__getitem__)
    middle = usual[len(usual) // 2]
    known = predict_step_time(config, steps[middle], calibration)
    return seconds, known and known.of_a_script(median(seconds[step] for step in usual))


def usual_steps(traces: Mapping[int, Trace], steps: Iterable[int]) -> list[int]:
    """Return the steps that ran in the script's own order: the dearest batches of an epoch run behind them."""
    epochs = (epoch for trace in traces.values() for epoch in trace.epochs if epoch["purpose"] == "training")
    last = min((epoch["batches_run_first"] // epoch["batches_per_step"] for epoch in epochs), default=None)
    return [step for step in steps if last is None or step <= last] or list(steps)


def _work_by_step(trace: Trace) -> dict[int, list[Item]]:
    works = [*trace.earlier_work, trace.work]
    return dict(enumerate(works, start=len(trace.steps) - len(works) + 1))


def _within_error(seconds: float, bound: float, error: float) -> tuple[float, float]:
    return max(bound, seconds * (1 - error)), seconds * (1 + error)
