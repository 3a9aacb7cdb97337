"""Whether a speed can be trusted: how much the steps of a run, or the repeats of it, differ."""

from collections.abc import Sequence
from statistics import median

NOISY = 0.05
"""A spread above this share of the median is told."""

FEW = 5
"""Fewer steps than this say nothing of their distribution."""


def spread(values: Sequence[float]) -> float:
    """The interquartile range as a share of the median; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    ordered = sorted(values)
    half = len(ordered) // 2
    return (median(ordered[-half:]) - median(ordered[:half])) / median(ordered)


def is_bimodal(values: Sequence[float]) -> bool:
    """Two clusters: a gap above NOISY of the median and wider than either cluster, with a fifth of all on each side."""
    if len(values) < FEW:
        return False
    ordered = sorted(values)
    at_least = max(2, len(ordered) // 5)
    splits = range(at_least, len(ordered) - at_least + 1)
    split = max(splits, key=lambda i: ordered[i] - ordered[i - 1], default=None)
    if split is None:
        return False
    gap = ordered[split] - ordered[split - 1]
    widths = (ordered[split - 1] - ordered[0], ordered[-1] - ordered[split])
    return gap > NOISY * median(ordered) and gap > max(widths)


def doubts(seconds: Sequence[float]) -> list[str]:
    """What a reader of the median should know, in words; empty when there is nothing to say."""
    found = []
    if is_bimodal(seconds):
        found.append("step times fall into two clusters")
    if len(seconds) >= FEW and spread(seconds) > NOISY:
        found.append(f"step times vary by {spread(seconds):.0%}")
    return found
