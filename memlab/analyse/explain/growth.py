"""Memory that grows: from one optimizer step to the next, or from one batch of an evaluation to the next."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from memlab.analyse.explain.phases import Part, parts_of
from memlab.core.grouping import grouped
from memlab.simulator.trace.events import Alloc, Free, of_kinds
from memlab.simulator.trace.memory_kinds import SMALL
from memlab.simulator.trace.trace_format import Site, Trace

LEAST_GROWTH = 1 << 20
"""Bytes a step, or a batch, below which growth is not named."""

LEAST_STEPS = 3
"""Optimizer steps of which the last ones are compared: the first one is not like the others."""

MOST_OF_IT = 0.75
"""Least share of the memory that all batches so far would hold, if each held as much for its size as the first one."""


class GrowingPlace(NamedTuple):
    """Memory from one place, of any module and shape, that grows ``times`` times. ``nbytes``: each time, on average;
    ``modules``: module -> bytes of ``nbytes``, the largest first."""

    place: Site
    nbytes: int
    times: int
    modules: tuple[tuple[str, int], ...]


class _Block(NamedTuple):
    """A block without an owner. ``begin``, ``end``: index of its request, and of its free."""

    site: Site
    nbytes: int
    begin: int
    end: int


def growth_over_steps(trace: Trace) -> list[GrowingPlace]:
    """Return what each step after the first one requests and nothing frees until the end of the last step.

    Empty if there are fewer than ``LEAST_STEPS`` steps.
    """
    parts = [part for part in parts_of(trace, len(trace.events)) if part.step is not None]
    whole = {part.step for part in parts if part.phase.endswith("optimizer_step")}
    bounds = list({part.step: part.end for part in parts if part.step in whole}.values())
    if len(bounds) < LEAST_STEPS:
        return []
    kept = [block for block in _blocks(trace, 0, bounds[-1]) if block.end >= bounds[-1]]
    steps, found = range(1, len(bounds)), []
    for place, blocks in grouped(kept, lambda block: _place(block.site)).items():
        later = [block for block in blocks if block.begin >= bounds[0]]
        if {bisect_right(bounds, block.begin) for block in later} == set(steps):
            found.append(_growth(place, later, len(steps)))
    return _largest_first(found)


def growth_in_evaluation(trace: Trace) -> list[GrowingPlace]:
    """Return what grows from batch to batch of an evaluation, in the evaluation with the most growth.

    A batch begins where the first large request of the evaluation comes again from the same code.
    """
    parts = parts_of(trace, len(trace.events))
    found = (_over_batches(trace, part) for part in parts if part.phase.removeprefix("first_") == "evaluate")
    return max(found, key=lambda grown: sum(each.nbytes for each in grown), default=[])


def _over_batches(trace: Trace, part: Part) -> list[GrowingPlace]:
    blocks = list(_blocks(trace, part.begin, part.end))
    if not blocks:
        return []
    first = blocks[0].site
    batches = [block for block in blocks if _code(block.site) == _code(first)]
    begins, sizes = [batch.begin for batch in batches], [batch.nbytes for batch in batches]
    held_at: dict[tuple[str, str], list[list[_Block]]] = defaultdict(lambda: [[] for _ in begins])
    for block in blocks:
        for batch in range(bisect_right(begins, block.begin), bisect_right(begins, block.end)):
            held_at[block.site.kind, block.site.user_line][batch].append(block)
    found = []
    for _, *held in held_at.values():
        if _grows([sum(block.nbytes for block in each) for each in held], sizes):
            largest = max(held[-1], key=lambda block: block.nbytes)
            found.append(_growth(_place(largest.site), held[-1], len(held)))
    return _largest_first(found)


def _grows(held: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether the bytes ``held`` when the second, third, ... batch begins grow like the sum of all batches
    before it, whose sizes are ``sizes`` in any unit: then they are not the last batch's alone.

    It takes three batches at least. Where outputs are put together, those of the first batch lie where the model made
    them, and ``held`` begins with 0.
    """
    start = 0 if held and held[0] else 1
    if len(held) < start + 2 or not held[start]:
        return False
    until = list(accumulate(sizes))
    each = held[start] / until[start]
    return all(held[index] >= MOST_OF_IT * each * until[index] for index in range(start + 1, len(held)))


def _growth(place: Site, blocks: Sequence[_Block], times: int) -> GrowingPlace:
    modules: Counter[str] = Counter()
    for block in blocks:
        modules[block.site.module] += block.nbytes
    of_modules = tuple((module, nbytes // times) for module, nbytes in modules.most_common())
    return GrowingPlace(place, modules.total() // times, times, of_modules)


def _largest_first(found: Iterable[GrowingPlace]) -> list[GrowingPlace]:
    return sorted((each for each in found if each.nbytes >= LEAST_GROWTH), key=lambda growth: -growth.nbytes)


def _blocks(trace: Trace, begin: int, end: int) -> Iterator[_Block]:
    """Yield the blocks requested from event ``begin`` to before ``end``, without small ones and without parameters,
    gradients and optimizer states."""
    freed = {event.key: index for index, event in of_kinds(trace.events, Free)}
    for index, event in of_kinds(trace.events, Alloc):
        site = trace.sites[event.site]
        if begin <= index < end and site.owner is None and site.kind != SMALL:
            yield _Block(site, event.nbytes, index, freed.get(event.key, len(trace.events)))


def _place(site: Site) -> Site:
    return Site(site.kind, site.op, site.where, "", "", (), site.user_line)


def _code(site: Site) -> tuple[str, str, str]:
    return site.op, site.where, site.module
