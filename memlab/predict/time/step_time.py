"""Step time of a prediction: the seconds, the error they may have, and when they are only a lower bound."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memlab.core.config import Config
from memlab.predict.time.calibration import Calibration
from memlab.predict.time.clocks import LOWER_BOUND, has_clocks, step_seconds
from memlab.predict.time.cost_fit import depends_on_undetermined, spends_time_on
from memlab.predict.trace.trace_format import Trace

CALIBRATED = "calibrated"
BOUND = "lower bound"


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


def _within_error(seconds: float, bound: float, error: float) -> tuple[float, float]:
    return max(bound, seconds * (1 - error)), seconds * (1 + error)
