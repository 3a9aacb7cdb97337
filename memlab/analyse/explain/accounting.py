"""Accounting of one moment: the driver's figure, taken apart down to the line of code, as a tree."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from memlab.predict.memory.ledger import Holding, Moment
from memlab.predict.trace.memory_kinds import is_flat_buffer
from memlab.predict.trace.trace_format import Site

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
class Row:
    """The same part of the memory in several runs or at several moments, in bytes. ``parts``: the one that differs most
    first."""

    name: str
    sizes: tuple[int, ...]
    parts: tuple["Row", ...] = ()

    @property
    def change(self) -> int:
        """The last size less the first."""
        return self.sizes[-1] - self.sizes[0]

    @property
    def spread(self) -> int:
        """The largest difference of two sizes, of the row or of a part: parts may differ where their sums do not."""
        return max(max(self.sizes) - min(self.sizes), *(part.spread for part in self.parts), 0)


def side_by_side(trees: Sequence[Share]) -> Row:
    """Put trees side by side. Parts of the same name are one row; a part that a tree lacks is 0 there."""
    names = dict.fromkeys(part.name for tree in trees for part in tree.parts)
    by_name = [{part.name: part for part in tree.parts} for tree in trees]
    rows = [side_by_side([parts.get(name, Share(name, 0)) for parts in by_name]) for name in names]
    rows.sort(key=lambda row: (-row.spread, -max(row.sizes)))
    return Row(trees[-1].name, tuple(tree.nbytes for tree in trees), tuple(rows))


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
    return _grouped("requested", holdings, (_kind, _module, _line))


def by_module(holdings: Iterable[Holding]) -> Share:
    return _grouped("requested", holdings, (_module, _kind, _line))


def by_line(holdings: Iterable[Holding]) -> Share:
    return _grouped("requested", holdings, (_line, _kind))


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


def _kind(holding: Holding) -> str:
    return holding.site.kind


def _module(holding: Holding) -> str:
    return module_of(holding.site)


def _line(holding: Holding) -> str:
    return line_of(holding.site)


def _grouped(name: str, holdings: Iterable[Holding], keys: Sequence[Callable[[Holding], str]]) -> Share:
    if not keys:
        return Share(name, sum(holding.nbytes for holding in holdings))
    groups: dict[str, list[Holding]] = defaultdict(list)
    for holding in holdings:
        groups[keys[0](holding)].append(holding)
    return sum_of(name, [_grouped(key, members, keys[1:]) for key, members in groups.items()])


def sum_of(name: str, parts: Iterable[Share]) -> Share:
    """Return a share with these parts, the largest first; parts without memory are left out."""
    found = sorted((part for part in parts if part.nbytes), key=lambda part: -part.nbytes)
    return Share(name, sum(part.nbytes for part in found), tuple(found))
