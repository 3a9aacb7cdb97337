"""Step time of a prediction: the seconds, and how they are known: with the calibration's error, or as a lower bound."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from memlab.core.basis import BOUND, CALIBRATED, Basis
from memlab.core.config import Config
from memlab.prediction.time.calibrate import Calibration
from memlab.prediction.time.clocks import LOWER_BOUND, has_clocks, step_seconds
from memlab.prediction.time.cost_fit import depends_on_undetermined, spends_time_on
from memlab.simulator.trace.trace_format import Trace, Traces
from memlab.simulator.trace.work_items import Item

OWN_PYTHON = "the script's own time between operators is not counted"


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step. ``basis``: with the calibration's error, or a lower bound; then ``seconds`` are
    ``lower_bound``.

    ``calibrated``: seconds by the calibrated costs; ``None`` without a calibration. Of a lower bound they are kept to
    compare with a measurement, and are no prediction.
    """

    seconds: float
    basis: Basis
    lower_bound: float  # seconds at full datasheet speed, with a host that takes no time
    calibrated: float | None = None
    calibration: Calibration | None = None

    def steps(self) -> dict[str, Any]:
        """Return the fields of ``Record.steps``."""
        return {
            "seconds": [self.seconds],
            "basis": self.basis.kind,
            "basis_reason": self.basis.reason,
            "error": None if self.basis.is_bound or self.calibration is None else self.calibration.error,
            "calibration": self.calibration and self.calibration.digest,
        }

    def summary(self) -> dict[str, Any]:
        """Return the fields of ``Record.summary`` that do not follow from ``seconds``."""
        low, high = self._range()
        return {
            "step_seconds_min": low,
            "step_seconds_max": high,
            "step_seconds_lower_bound": self.lower_bound,
            "step_seconds_basis": self.basis.kind,
        }

    def timing(self) -> dict[str, Any]:
        """Return the fields of ``Record.timing``."""
        return {
            "step_s": self.seconds,
            "step_s_range": list(self._range()),
            "step_s_lower_bound": self.lower_bound,
            "step_s_calibrated": self.calibrated,
        }

    def _range(self) -> tuple[float, float | None]:
        """For nine in ten configurations that the calibration had not seen, the measured time was within this range."""
        low, high = self.basis.range(self.seconds)
        return max(self.lower_bound, low), high


def predict_step_time(config: Config, traces: Traces, calibration: Calibration | None) -> StepTime | None:
    """Predict the step time; ``None`` where the hardware entry lacks speeds or the work of the step is unknown.

    ``calibration``: ``None`` gives the lower bound. Steps of a command may differ: the time is that of its usual ones.
    """
    if config.is_command:
        return predict_steps(config, traces, calibration)[1]
    if not has_clocks(config, traces.values()):
        return None
    bound = step_seconds(config, traces, LOWER_BOUND)
    if calibration is None:
        return StepTime(bound, Basis(BOUND, reason=why_not_calibrated(config)), bound)
    seconds = step_seconds(config, traces, calibration.costs)
    if depends_on_undetermined(config, traces, calibration.costs, calibration.undetermined):
        depends = f"it depends on what was not calibrated ({', '.join(calibration.undetermined)})"
        return StepTime(bound, Basis(BOUND, reason=depends), bound, seconds, calibration)
    why = None
    if spends_time_on(config, traces, calibration.costs, calibration.determined_once):
        why = f"only one configuration determines {', '.join(calibration.determined_once)}, so the error may be larger"
    return StepTime(seconds, Basis(CALIBRATED, calibration.error["p90"], why), bound, seconds, calibration)


def why_not_calibrated(config: Config) -> str:
    """Say why the step time of a configuration without a calibration is a lower bound."""
    return f"no calibration for {config.hardware.gpu}" if config.hardware.nodes == 1 else "several nodes"


def predict_steps(
    config: Config, traces: Traces, calibration: Calibration | None
) -> tuple[dict[int, float], StepTime | None]:
    """Predict the steps of a command, which may differ. Their times are lower bounds: a calibration's error is that of
    memlab's own training, and measured commands took up to eight times as long (docs/step_time.md).

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
    seconds = {step: step_seconds(config, work, LOWER_BOUND) for step, work in steps.items()}
    usual = usual_steps(traces, seconds)
    bound = median(seconds[step] for step in usual)
    if calibration is None:
        return seconds, StepTime(bound, Basis(BOUND, reason=why_not_calibrated(config)), bound)
    calibrated = median(step_seconds(config, steps[step], calibration.costs) for step in usual)
    return seconds, StepTime(bound, Basis(BOUND, reason=OWN_PYTHON), bound, calibrated, calibration)


def usual_steps(traces: Traces, steps: Iterable[int]) -> list[int]:
    """Return the steps that ran in the script's own order: the dearest batches of an epoch run behind them."""
    epochs = (epoch for trace in traces.values() for epoch in trace.epochs if epoch["purpose"] == "training")
    last = min((epoch["batches_run_first"] // epoch["batches_per_step"] for epoch in epochs), default=None)
    return [step for step in steps if last is None or step <= last] or list(steps)


def _work_by_step(trace: Trace) -> dict[int, list[Item]]:
    return dict(enumerate([*trace.earlier_work, trace.work], start=len(trace.steps) - len(trace.earlier_work)))
