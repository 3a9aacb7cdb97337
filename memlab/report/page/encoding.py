"""Encoding of the values of many points as one column, in the shortest of three forms."""

from collections.abc import Sequence
from typing import Any

SHARE = 0.25
"""Distinct values per point above which numbering the values saves nothing."""


def encoded(values: Sequence[Any]) -> Any:
    """Encode texts, numbers, booleans and ``None``.

    Equal values give ``{"all": value}``, few distinct ones ``{"of": values, "at": numbers}``, others the list itself.
    """
    numbers: dict[tuple[type, Any], int] = {}
    at = [numbers.setdefault((type(value), value), len(numbers)) for value in values]
    if len(numbers) == 1:
        return {"all": values[0]}
    if len(numbers) > SHARE * len(values):
        return list(values)
    return {"of": [value for _, value in numbers], "at": at}
