"""The objective of a search by another sweeper of Hydra (Optuna, Ax): one number for each point."""

from math import inf

from memlab.analyse.run_view import RunView, free_bytes, peak
from memlab.core.basis import follows_from_step
from memlab.core.errors import MemlabError
from memlab.core.record import FINAL

FREE = "free_bytes"


def objective_of(run: RunView, name: str) -> float:
    """Return the objective ``name`` of a run: the smaller the better, except ``free_bytes``.

    A point that cannot run, does not fit or does not last is infinitely bad. Raises :class:`MemlabError` for a run
    without a result, and for a value that is not known or only a lower bound: it cannot be ranked.
    """
    if run.status not in FINAL:
        raise MemlabError(f"{run.path} has no {name}: it ended as {run.status}: {run.reason}")
    if not run.fits_and_lasts:
        return -inf if name == FREE else inf
    if follows_from_step(name) and run.basis.is_bound:
        raise bound_error(name, run.basis.reason)
    value = free_bytes(run) if name == FREE else peak(run, name) if name.startswith("peak_") else run.summary.get(name)
    if value is None:
        price = "set hardware.usd_per_gpu_hour, or " if name.startswith("usd") else ""
        raise MemlabError(f"{run.path} has no {name}, which is the objective: {price}choose another objective.")
    return float(value)


def bound_error(name: str, reason: str | None) -> MemlabError:
    """Return the refusal of an objective of which only a lower bound is known."""
    why = f" ({reason})" if reason else ""
    return MemlabError(
        f"objective={name}: only a lower bound is known{why}, and bounds cannot be ranked. Instead: mode=measure; "
        "a GPU with a calibration (hardware=h200_x8, predict.calibrate=RUNS); or "
        "objective=peak_reserved_bytes or free_bytes."
    )
