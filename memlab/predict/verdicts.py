"""Whether a predicted run fits, in a word."""

from collections.abc import Iterable

FITS, EDGE, DOES_NOT_FIT = "fits", "edge", "does_not_fit"


def worst(verdicts: Iterable[str]) -> str:
    """A run fits where all its ranks do."""
    return max(verdicts, key=(FITS, EDGE, DOES_NOT_FIT).index)
