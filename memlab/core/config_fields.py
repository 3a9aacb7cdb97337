"""Declarations of configuration fields with their valid values, which memlab/core/schema.py checks, and ranges."""

import math
from dataclasses import dataclass, field
from typing import Any

LARGEST_WHOLE = 2**63 - 1
"""The largest whole number that torch holds."""


@dataclass(frozen=True)
class Range:
    """Numbers from ``minimum`` to ``maximum``. ``above`` excludes the minimum, ``below`` excludes the maximum."""

    minimum: float = -math.inf
    maximum: float = math.inf
    above: bool = False
    below: bool = False

    def refusal(self, value: float) -> str | None:
        """Say what ``value`` must be, for instance ``at least 1``; ``None`` if it is in the range."""
        if isinstance(value, float) and not math.isfinite(value):
            return "a finite number"
        if value < self.minimum or (self.above and value == self.minimum):
            return f"{'more than' if self.above else 'at least'} {self.minimum}"
        if value > self.maximum or (self.below and value == self.maximum):
            return f"{'less than' if self.below else 'at most'} {self.maximum}"
        return None


NOT_NEGATIVE = Range(0.0)
POSITIVE = Range(0.0, above=True)


MISSING = "???"
"""OmegaConf's mark for a mandatory value."""


def one_of(default: Any, *others: Any) -> Any:
    """Declare a field that takes one of the given values. The first is the default."""
    return field(default=default, metadata={"choices": (default, *others)})


def at_least(minimum: int, default: int | None, maximum: int = LARGEST_WHOLE) -> Any:
    """Declare a whole-number field with a lowest and a highest value."""
    return within(Range(minimum, maximum), default)


def within(allowed: Range, default: Any) -> Any:
    """Declare a field that takes a number in this range, or a list of such numbers."""
    return field(default=default, metadata={"range": allowed})


def share(default: float) -> Any:
    """Declare a field that takes numbers from 0 to 1."""
    return within(Range(0.0, 1.0), default)


def not_negative(default: float | None) -> Any:
    return within(NOT_NEGATIVE, default)


def positive(default: float | None) -> Any:
    return within(POSITIVE, default)
