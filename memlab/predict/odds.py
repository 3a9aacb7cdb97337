"""How likely it is that something fits, from the errors of earlier predictions."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

RATIOS = Path(__file__).parent / "ratios.json"
"""``measured / predicted`` reserved memory of every record of results/ that ran, by engine configuration: written by
``make accuracy``, which also publishes the same errors."""

STEP = 0.005
"""Ratios are rounded up to multiples of this: a replay more for every distinct one is not worth their digits."""


@cache
def shipped_ratios() -> dict[str, list[float]]:
    return json.loads(RATIOS.read_text(encoding="utf-8"))["ratios"]


def probability(fits: Callable[[float], bool], ratios: Mapping[str, Sequence[float]]) -> tuple[float, int]:
    """The probability that a prediction's point fits, and on how many engine configurations it rests.

    ``fits`` says whether it would if ``ratio`` times as much were needed as predicted; what fits at a ratio fits at
    every smaller one. The points of one configuration share their error, so each configuration counts as one, and with
    one success and one failure added (Laplace) nothing is ever certain.
    """
    distinct = sorted({_rounded(ratio) for values in ratios.values() for ratio in values})
    low, high = 0, len(distinct)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(distinct[middle]) else (low, middle)
    limit = distinct[low - 1] if low else 0.0
    shares = [sum(_rounded(ratio) <= limit for ratio in values) / len(values) for values in ratios.values()]
    return (sum(shares) + 1) / (len(shares) + 2), len(shares)


def _rounded(ratio: float) -> float:
    return round(-(-round(ratio, 6) // STEP) * STEP, 6)
