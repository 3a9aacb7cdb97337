"""Noise of step times: how much the steps of a run, or its repeats, differ."""

from collections.abc import Sequence
from statistics import median

NOISY = 0.05
"""Spread, as a share of the median, above which memlab reports step times as noisy."""

FEW = 5
"""Fewest steps for which the distribution is judged."""


def spread(values: Sequence[float]) -> float:
    """Return the interquartile range as a share of the median; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    ordered = sorted(values)
    half = len(ordered) // 2
    return (median(ordered[-half:]) - median(ordered[:half])) / median(ordered)


def is_bimodal(values: Sequence[float]) -> bool:
    """Whether the values fall into two clusters, each with at least two values and a fifth of all.

    The gap between the clusters must be wider than either cluster and larger than NOISY times the median.
    """
    if len(values) < FEW:
        return False
    ordered = sorted(values)
    at_least = max(2, len(ordered) // 5)
    split = max(range(at_least, len(ordered) - at_least + 1), key=lambda i: ordered[i] - ordered[i - 1])
    gap = ordered[split] - ordered[split - 1]
    return gap > NOISY * median(ordered) and gap > max(ordered[split - 1] - ordered[0], ordered[-1] - ordered[split])


def doubts(seconds: Sequence[float]) -> list[str]:
    """List the reasons to doubt the median step time, in words; empty if there are none."""
    found = []
    if is_bimodal(seconds):
        found.append("step times fall into two clusters")
    if len(seconds) >= FEW and spread(seconds) > NOISY:
        found.append(f"step times vary by {spread(seconds):.0%}")
    return found
