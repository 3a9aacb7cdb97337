"""The values of many points as one column, in the shortest of three forms that the page reads."""

from collections.abc import Sequence
from typing import Any

SHARE = 0.25
"""Distinct values a point from which on numbering them would save nothing."""


def encoded(values: Sequence[Any]) -> Any:
    """``{"all": value}`` where all are equal, ``{"of": values, "at": numbers}`` where few differ, else the list.

    Values are texts, numbers, truth values or ``None``.
    """
    numbers: dict[tuple[type, Any], int] = {}
    at = [numbers.setdefault((type(value), value), len(numbers)) for value in values]
    if len(numbers) == 1:
        return {"all": values[0]}
    if len(numbers) > SHARE * len(values):
        return list(values)
    return {"of": [value for _, value in numbers], "at": at}
