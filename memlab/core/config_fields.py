"""Declarations of configuration fields with their valid values, which memlab/core/schema.py checks."""

from dataclasses import field
from typing import Any

from memlab.core.ranges import LARGEST_WHOLE, NOT_NEGATIVE, POSITIVE, SHARE, Range

MISSING = "???"
"""OmegaConf's mark for a mandatory value."""


def one_of(default: str, *others: str) -> Any:
    """Declare a text field that takes one of the given values. The first is the default."""
    return field(default=default, metadata={"choices": (default, *others)})


def at_least(minimum: int, default: int | None, maximum: int = LARGEST_WHOLE) -> Any:
    """Declare a whole-number field with a lowest and a highest value."""
    return within(Range(minimum, maximum), default)


def within(allowed: Range, default: Any) -> Any:
    """Declare a field that takes a number in this range, or a list of such numbers."""
    return field(default=default, metadata={"range": allowed})


def share(default: float) -> Any:
    """Declare a field that takes numbers from 0 to 1."""
    return within(SHARE, default)


def not_negative(default: float | None) -> Any:
    return within(NOT_NEGATIVE, default)


def positive(default: float | None) -> Any:
    return within(POSITIVE, default)
