"""How a time, a rate or a price of a run is known: measured, calibrated with its error, or only a bound.

Whatever follows from the step time has the basis of the step time: rates, an epoch, a price. ``Record.basis`` and
``RunView.basis`` give it; memlab/report/units.py writes it. The rules for a bound, which hold wherever one is printed:

- It is written "at least" (a rate made of it "at most"), never as a plain number: ``units.known``, ``units.quantity``.
- It is not compared with another value, and sorts nothing: :func:`comparable` first. What ranks by time or price
  says that the time is not known where a bound takes part, and ranks by memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEASURED, CALIBRATED, BOUND = ("measured", "calibrated", "lower bound")
"""The words of ``Record.steps["basis"]``. A measured record lacks the key."""


@dataclass(frozen=True)
class Basis:
    """How a time or a price is known.

    ``error``: of a calibrated one; nine in ten measured times were within this share of the predicted time.
    ``reason``: why it is a bound, or why the error of a calibrated one may be larger.
    """

    kind: str
    error: float | None = None
    reason: str | None = None

    @property
    def is_bound(self) -> bool:
        return self.kind == BOUND

    def range(self, value: float) -> tuple[float, float | None]:
        """Return the lowest and the highest value that a time or price of ``value`` may really have; ``None``: not
        known."""
        if self.is_bound:
            return value, None
        error = self.error or 0.0
        return value * max(0.0, 1 - error), value * (1 + error)


EXACT = Basis(MEASURED)


def basis_of(source: str, steps: Mapping[str, Any], summary: Mapping[str, Any]) -> Basis:
    """Return the basis of the times and prices of a record. ``source``, ``steps``, ``summary``: as in ``Record``.

    An older prediction that does not say how it knows its step time has a bound: its error is not known.
    """
    if source == MEASURED:
        return EXACT
    error = (steps.get("error") or {}).get("p90")
    if error is None or summary.get("step_seconds_max", 0) is None:
        return Basis(BOUND, reason=steps.get("basis_reason"))
    return Basis(CALIBRATED, error, steps.get("basis_reason"))


def comparable(*bases: Basis) -> bool:
    """Return whether times or prices with these bases may be compared and ranked: whether none is a bound."""
    return not any(basis.is_bound for basis in bases)


def is_rate(key: str) -> bool:
    """Return whether a record key is larger the faster a run is. A rate made of a bound is an upper one."""
    return "per_second" in key or key == "model_flops_utilization"


def follows_from_step(key: str) -> bool:
    """Return whether the value of a record key follows from the step time, and so has its basis."""
    return is_rate(key) or key in ("step_seconds", "step_seconds_mean", "usd_per_million_tokens")
