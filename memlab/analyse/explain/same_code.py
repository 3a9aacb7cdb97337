"""The same code in two versions of a file: its lines have other numbers, but the same function and operator."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from memlab.predict.memory.ledger import Holding
from memlab.predict.trace.trace_format import Site

SAME_VERSION = 0.5
"""Least share of the lines of a file in one run that the other run has too, if both have the same version of it."""

_Code = tuple[str, str, str]  # file, function, operator
_Names = dict[tuple[_Code, int], str]  # of a line by its number


def with_same_lines(
    first: Sequence[Holding], second: Sequence[Holding]
) -> tuple[tuple[Holding, ...], tuple[Holding, ...]]:
    """Return the holdings of two runs with one name for a line that has two numbers: ``model.py:317 -> 306``.

    Where the runs have other versions of a file, the lines of one function that call one operator are paired in their
    order. They keep their numbers if there are not as many of them in both runs.
    """
    lines = [_lines(holdings) for holdings in (first, second)]
    names: tuple[_Names, _Names] = ({}, {})
    for code in lines[0].keys() & lines[1].keys():
        numbers = [sorted(each[code]) for each in lines]
        if len(numbers[0]) == len(numbers[1]) and not _same_version(code[0], *lines):
            for one, other in zip(*numbers, strict=True):
                name = f"{code[0]}:{one}" if one == other else f"{code[0]}:{one} -> {other}"
                names[0][code, one] = names[1][code, other] = name
    return _renamed(first, names[0]), _renamed(second, names[1])


def _lines(holdings: Sequence[Holding]) -> dict[_Code, set[int]]:
    found: dict[_Code, set[int]] = defaultdict(set)
    for held in holdings:
        if line := _line(held.site):
            found[line[0]].add(line[1])
    return found


def _line(site: Site) -> tuple[_Code, int] | None:
    """Return the code and the number of a site's line; ``None`` if it is not known."""
    file, _, number = site.where.rpartition(":")
    return ((file, site.function, site.operator), int(number)) if number.isdecimal() else None


def _same_version(file: str, first: Mapping[_Code, set[int]], second: Mapping[_Code, set[int]]) -> bool:
    one, other = (
        {(code, number) for code, numbers in lines.items() if code[0] == file for number in numbers}
        for lines in (first, second)
    )
    return len(one & other) >= SAME_VERSION * min(len(one), len(other))


def _renamed(holdings: Sequence[Holding], names: _Names) -> tuple[Holding, ...]:
    return tuple(
        replace(held, site=replace(held.site, where=names[line])) if (line := _line(held.site)) in names else held
        for held in holdings
    )
