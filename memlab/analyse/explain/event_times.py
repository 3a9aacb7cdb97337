"""Times of the events of an explained rank: of the recorded history, or of the clocks of a prediction."""

from collections.abc import Mapping

from memlab.analyse.explain.explained import Explained
from memlab.core.record import PREDICTED, Record
from memlab.predict.time.calibration_choice import resolve
from memlab.predict.time.clocks import LOWER_BOUND, has_clocks
from memlab.predict.time.step_intervals import event_seconds


def event_times(rank: Explained, record: Record) -> Mapping[int, float]:
    """Return event (index in the trace) -> seconds on the host's clock, from the first known time on.

    Of a prediction, the last step has times; empty where there is no clock. ``record``: of the run of ``rank``.
    """
    if record.source != PREDICTED:
        return dict(enumerate(rank.history.seconds or ()))
    trace = rank.history.trace
    if not has_clocks(record.config, [trace]) or not trace.work:
        return {}
    calibration = resolve(record.config).step
    return event_seconds(record.config, trace, LOWER_BOUND if calibration is None else calibration.costs)
