"""Micro-steps that are alike: what one does with any batch, from a few that were recorded.

Batches differ in several measures: the dimensions of their tensors, and how many values of their masks count. Each
amount of a micro-step follows from one of them: the size of a tensor of all tokens from the longest sample, the
positions of a sample from its own length, the logits of answers from the number of their tokens.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import prod

import numpy as np

from memlab.simulator.trace.alike_steps import AlikeStep, Outline

LEAST = 4
"""Recorded micro-steps that formulas need. A polynomial of degree 1 follows from two of them, one of degree 2 from
three. The others have to confirm it."""

LEAST_EQUAL = 2
"""Recorded micro-steps that are enough where their batches are equal in all measures."""

REACH = 9 / 8
"""How far formulas hold beyond the recorded batches: a tensor may have so many times the elements of the largest
recorded one. For larger tensors, a kernel may work in another way."""

_Formula = tuple[int, Sequence[tuple[int, int]]]
"""Index of a measure, and points (measure, amount) of the polynomial."""


class Formulas:
    """What a micro-step does for any batch that is at most a little larger than the recorded ones (``REACH``).

    ``steps``: the recorded ones, whose ``size`` are the measures of the batch, the elements of its ``tensors`` first.
    ``like``: the last.
    """

    def __init__(
        self, like: AlikeStep, steps: Sequence[Outline], tensors: int, formulas: Sequence[_Formula], which: np.ndarray
    ):
        self._like, self._formulas, self._which = like, formulas, which
        self._largest = [max(values) for values in zip(*(step.size[:tensors] for step in steps), strict=True)]
        self._constant = [len(set(values)) == 1 for values in zip(*(step.size for step in steps), strict=True)]

    @classmethod
    def of(cls, earlier: Sequence[Outline], like: AlikeStep, tensors: int) -> "Formulas | None":
        """Find the formulas of ``earlier`` steps and of the last one, ``like``; ``None`` if they are too few, or not
        alike, or do not follow from one measure."""
        steps = [*earlier, like.outline]
        measures = list(zip(*(step.size for step in steps), strict=True))
        least = LEAST if any(len(set(values)) > 1 for values in measures) else LEAST_EQUAL
        if len(steps) < least or len({step.form for step in steps}) > 1:
            return None
        numbers: dict[tuple[int, ...], int] = {}  # of the distinct amounts in all steps
        amounts = zip(*(step.amounts.tolist() for step in steps), strict=True)
        which = [numbers.setdefault(each, len(numbers)) for each in amounts]
        formulas = [formula for each in numbers if (formula := _formula(each, measures)) is not None]
        return cls(like, steps, tensors, formulas, np.array(which)) if len(formulas) == len(numbers) else None

    def at(self, size: Sequence[int]) -> AlikeStep | None:
        """Return the step for a batch; ``None`` where it is to be traced: a tensor is much larger than those recorded,
        or a measure differs that was always equal."""
        if any(elements > REACH * largest for elements, largest in zip(size, self._largest, strict=False)):
            return None
        values = [_value(points, size[measure]) for measure, points in self._formulas]
        pairs = zip(self._constant, size, self._like.size, strict=True)
        if any(value.denominator > 1 for value in values) or any(c and own != other for c, own, other in pairs):
            return None
        return self._like.at(size, np.array(list(map(int, values)), dtype=np.int64)[self._which])


def _formula(amounts: Sequence[int], measures: Sequence[Sequence[int]]) -> _Formula | None:
    """Return the simplest formula of an amount in the steps; ``None``: it follows from none of the measures."""
    if len(set(amounts)) == 1:
        return 0, [(0, amounts[0])]
    for degree in (1, 2):
        for number, values in enumerate(measures):
            points = sorted(set(zip(values, amounts, strict=True)))
            chosen, others = points[: degree + 1], points[degree + 1 :]
            if others and len(dict(points)) == len(points) and all(_value(chosen, x) == y for x, y in others):
                return number, chosen
    return None


def _value(points: Sequence[tuple[int, int]], at: int) -> Fraction:
    """Evaluate the polynomial through the points, as Lagrange wrote it."""
    terms = ((y, [x for x, _ in points if x != own], own) for own, y in points)
    return sum((Fraction(y * prod(at - x for x in xs), prod(own - x for x in xs)) for y, xs, own in terms), Fraction(0))
