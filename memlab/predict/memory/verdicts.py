"""Verdicts on a predicted run: whether it fits the GPU."""

from collections.abc import Iterable

FITS, EDGE, DOES_NOT_FIT = "fits", "edge", "does_not_fit"


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of the ranks' verdicts: a run fits if all its ranks fit."""
    return max(verdicts, key=(FITS, EDGE, DOES_NOT_FIT).index)
