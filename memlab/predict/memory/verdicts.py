"""Verdicts on a predicted run: whether it fits the GPU."""

from collections.abc import Iterable

from memlab.core.record import DOES_NOT_FIT, EDGE, FITS


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of the ranks' verdicts: a run fits if all its ranks fit."""
    return max(verdicts, key=(FITS, EDGE, DOES_NOT_FIT).index)
