"""Number types for ``argparse``: each has a range and refuses a number outside of it."""

import argparse
from collections.abc import Callable

from memlab.core.ranges import LARGEST_WHOLE, Range


def whole(minimum: int, maximum: int = LARGEST_WHOLE) -> Callable[[str], int]:
    """Make the type of a whole number."""
    return _within(int, "a whole number", Range(minimum, maximum))


def number(allowed: Range) -> Callable[[str], float]:
    """Make the type of a finite number."""
    return _within(float, "a number", allowed)


def _within(kind: type, noun: str, allowed: Range):
    def read(text: str):
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {noun}, not '{text}'") from None
        if refusal := allowed.refusal(value):
            raise argparse.ArgumentTypeError(f"must be {refusal}, not {text}")
        return value

    return read
