"""Accounting of one moment: the driver's figure, taken apart down to the line of code, as a tree.

The same code in two versions of a file has lines of other numbers, but the same function and operator.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from memlab.core.grouping import grouped
from memlab.prediction.memory.ledger import Holding, Moment
from memlab.simulator.trace.memory_kinds import is_flat_buffer
from memlab.simulator.trace.trace_format import Site

UNEXPLAINED = "unexplained"

ALL_MODULES, OUTSIDE_MODULES = "all modules", "outside all modules"

OUTSIDE = "outside the allocator"

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True)
class Share:
    """Part of the memory. Its ``parts``, the largest first, add up to ``nbytes``; without parts it is not divided."""

    name: str
    nbytes: int
    parts: tuple["Share", ...] = ()


@dataclass(frozen=True)
class ComparedPart:
    """The same part of the memory in several runs or at several moments, in bytes. ``parts``: the one that differs most
    first."""

    name: str
    sizes: tuple[int, ...]
    parts: tuple["ComparedPart", ...] = ()

    @property
    def change(self) -> int:
        """The last size less the first."""
        return self.sizes[-1] - self.sizes[0]

    @property
    def spread(self) -> int:
        """The largest difference of two sizes, of the row or of a part: parts may differ where their sums do not."""
        return max(max(self.sizes) - min(self.sizes), *(part.spread for part in self.parts), 0)


def side_by_side(trees: Sequence[Share]) -> ComparedPart:
    """Put trees side by side. Parts of the same name are one row; a part that a tree lacks is 0 there."""
    names = dict.fromkeys(part.name for tree in trees for part in tree.parts)
    by_name = [{part.name: part for part in tree.parts} for tree in trees]
    rows = [side_by_side([parts.get(name, Share(name, 0)) for parts in by_name]) for name in names]
    rows.sort(key=lambda row: (-row.spread, -max(row.sizes)))
    return ComparedPart(trees[-1].name, tuple(tree.nbytes for tree in trees), tuple(rows))


def used(moment: Moment, outside: Sequence[Share], driver: int | None) -> Share:
    """Return the memory of the device at a moment.

    ``outside``: what is not the allocator's. ``driver``: the driver's figure then, in bytes; what the parts do not
    reach is ``UNEXPLAINED``. ``None``: there is none, as in a prediction.
    """
    parts = [reserved(moment), sum_of(OUTSIDE, outside)]
    known = sum(part.nbytes for part in parts)
    if driver is not None and driver != known:
        parts.append(Share(UNEXPLAINED, driver - known))
    return Share("used", known if driver is None else driver, tuple(parts))


def without_details_outside(whole: Share) -> Share:
    """Return the memory of a device with each part outside the allocator as a whole."""
    parts = [
        replace(part, parts=tuple(replace(each, parts=()) for each in part.parts)) if part.name == OUTSIDE else part
        for part in whole.parts
    ]
    return replace(whole, parts=tuple(parts))


def reserved(moment: Moment) -> Share:
    """Return what the allocator holds: the blocks that the program requested, and the slack."""
    slack = moment.slack
    parts = (
        Share("could go back to the device (torch.cuda.empty_cache)", slack.releasable),
        Share("holes: free, in segments that hold other blocks", slack.holes),
        Share("rounding of blocks in use", slack.rounding),
        Share("freed, but a side stream may still use it", slack.waiting),
    )
    return sum_of("reserved", [by_kind(moment.holdings), sum_of("slack of the allocator", parts)])


def by_kind(holdings: Iterable[Holding]) -> Share:
    """Return the memory that the program requested: by kind, then by module, then by line of code."""
    sites = ((held.site, held.nbytes) for held in holdings)
    return tree("requested", (((site.kind, module_of(site), line_of(site)), nbytes) for site, nbytes in sites))


def layers_together(module: str) -> str:
    """Return the name of a module with the numbers of its layers replaced: ``model.layers.*.mlp``."""
    return _NUMBER.sub("*", module)


def module_of(site: Site) -> str:
    """Name the module of a site in a tree, equal layers together."""
    if is_flat_buffer(site):
        return ALL_MODULES
    return layers_together(site.module) or (ALL_MODULES if site.owner else OUTSIDE_MODULES)


def line_of(site: Site) -> str:
    """Name the line and the operator of a site in a tree; where they are not known, the parameter."""
    parameter = layers_together(site.owner.parameter) if site.owner else ""
    return " ".join(filter(None, (site.where, site.operator))) or parameter or "small requests"


def tree(name: str, parts: Iterable[tuple[tuple[str, ...], int]]) -> Share:
    """Put parts together by their names, which go from part to sub-part, with their bytes."""
    groups: dict[str, list[tuple[tuple[str, ...], int]]] = defaultdict(list)
    total = 0
    for names, nbytes in parts:
        total += nbytes
        if names:
            groups[names[0]].append((names[1:], nbytes))
    return sum_of(name, [tree(key, members) for key, members in groups.items()]) if groups else Share(name, total)


def sum_of(name: str, parts: Iterable[Share]) -> Share:
    """Return a share with these parts, the largest first; parts without memory are left out."""
    found = sorted((part for part in parts if part.nbytes), key=lambda part: -part.nbytes)
    return Share(name, sum(part.nbytes for part in found), tuple(found))


_Code = tuple[str, str, str]  # file, function, operator
_Line = tuple[_Code, int]  # with its number


def with_same_lines(
    first: Sequence[Holding], second: Sequence[Holding]
) -> tuple[tuple[Holding, ...], tuple[Holding, ...]]:
    """Return the holdings of two runs, in which a line of both has one name: ``model.py:317 -> 306`` if it has moved.

    Where the runs have other versions of a file, the lines of one function that call one operator are paired in their
    order. They keep their numbers if there are not as many of them in both runs.
    """
    lines = [{line for held in holdings if (line := _line(held.site))} for holdings in (first, second)]
    numbers = [grouped(sorted(each), itemgetter(0)) for each in lines]
    names: tuple[dict[_Line, str], dict[_Line, str]] = ({}, {})
    for code in numbers[0].keys() & numbers[1].keys():
        own = [each[code] for each in numbers]
        if len(own[0]) == len(own[1]) and not _same_version(code[0], *lines):
            for one, other in zip(*own, strict=True):
                name = f"{code[0]}:{one[1]}" if one == other else f"{code[0]}:{one[1]} -> {other[1]}"
                names[0][one] = names[1][other] = name
    return _renamed(first, names[0]), _renamed(second, names[1])


def _line(site: Site) -> _Line | None:
    """Return the code and the number of a site's line; ``None`` if it is not known."""
    file, _, number = site.where.rpartition(":")
    return ((file, site.function, site.operator), int(number)) if number.isdecimal() else None


def _same_version(file: str, first: Iterable[_Line], second: Iterable[_Line]) -> bool:
    """Return whether one run has at least half of the lines of a file that the other run has."""
    one, other = ({line for line in lines if line[0][0] == file} for lines in (first, second))
    return len(one & other) >= 0.5 * min(len(one), len(other))


def _renamed(holdings: Sequence[Holding], names: dict[_Line, str]) -> tuple[Holding, ...]:
    return tuple(
        replace(held, site=replace(held.site, where=names[line])) if (line := _line(held.site)) in names else held
        for held in holdings
    )
