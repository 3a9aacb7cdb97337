"""Ranges of numbers, with the same error messages for configurations and command lines."""

import math
from dataclasses import dataclass

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
SHARE = Range(0.0, 1.0)
