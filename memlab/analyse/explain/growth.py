"""Memory that grows: from one optimizer step to the next, or from one batch of an evaluation to the next."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memlab.analyse.explain.phases import Part, parts_of
from memlab.predict.trace.events import Alloc, Free
from memlab.predict.trace.memory_kinds import SMALL
from memlab.predict.trace.trace_format import Site, Trace

LEAST_GROWTH = 1 << 20
"""Bytes a step, or a batch, below which growth is not named."""

LEAST_STEPS = 3
"""Optimizer steps of which the last ones are compared: the first one is not like the others."""

LEAST_BATCHES = 3


class Place(NamedTuple):
    """Code that makes memory of one kind."""

    kind: str
    op: str
    where: str
    user_line: str


class Growth(NamedTuple):
    """Memory from one place that grows ``times`` times. ``nbytes``: each time, on average; ``modules``: module -> bytes
    of ``nbytes``, the largest first."""

    place: Place
    nbytes: int
    times: int
    modules: tuple[tuple[str, int], ...]


class _Block(NamedTuple):
    """A block without an owner. ``begin``, ``end``: index of its request, and of its free."""

    site: Site
    nbytes: int
    begin: int
    end: int


def growth_over_steps(trace: Trace) -> list[Growth]:
    """Return what each step after the first one requests and nothing frees until the end of the last step.

    Empty if there are fewer than ``LEAST_STEPS`` steps.
    """
    parts = [part for part in parts_of(trace, len(trace.events)) if part.step is not None]
    whole = {part.step for part in parts if part.phase.endswith("optimizer_step")}
    bounds = list({part.step: part.end for part in parts if part.step in whole}.values())
    if len(bounds) < LEAST_STEPS:
        return []
    kept = [block for block in _blocks(trace, 0, bounds[-1]) if block.end >= bounds[-1]]
    by_step: dict[Place, dict[int, list[_Block]]] = defaultdict(lambda: defaultdict(list))
    for block in kept:
        by_step[_place(block.site)][bisect_right(bounds, block.begin)].append(block)
    steps = range(1, len(bounds))
    found = [
        _growth(place, [block for step in steps for block in of_steps[step]], len(steps))
        for place, of_steps in by_step.items()
        if all(of_steps.get(step) for step in steps)
    ]
    return _largest_first(found)


def growth_in_evaluation(trace: Trace) -> list[Growth]:
    """Return what grows from batch to batch of an evaluation, in the evaluation with the most growth.

    A batch begins where the first large request of the evaluation comes again from the same code.
    """
    found: list[Growth] = []
    for part in parts_of(trace, len(trace.events)):
        if part.phase.removeprefix("first_") == "evaluate":
            found = max(found, _over_batches(trace, part), key=lambda grown: sum(each.nbytes for each in grown))
    return found


def _over_batches(trace: Trace, part: Part) -> list[Growth]:
    blocks = list(_blocks(trace, part.begin, part.end))
    if not blocks:
        return []
    first = blocks[0].site
    begins = [block.begin for block in blocks if _code(block.site) == _code(first)]
    batches = len(begins) - 1
    if batches < LEAST_BATCHES - 1:
        return []
    of_place: dict[Place, list[_Block]] = defaultdict(list)
    for block in blocks:
        of_place[_place(block.site)].append(block)
    found = []
    for place, own in of_place.items():
        held = [sum(block.nbytes for block in own if block.begin < begin <= block.end) for begin in begins[1:]]
        rises = all(before < after for before, after in zip([0, *held], held, strict=False))
        if rises and held[-1] > 0.75 * batches * held[0]:  # not only the last batch's, which was larger by chance
            found.append(_growth(place, [block for block in own if block.begin < begins[-1] <= block.end], batches))
    return _largest_first(found)


def _growth(place: Place, blocks: Sequence[_Block], times: int) -> Growth:
    modules: Counter[str] = Counter()
    for block in blocks:
        modules[block.site.module] += block.nbytes
    of_modules = tuple((module, nbytes // times) for module, nbytes in modules.most_common())
    return Growth(place, modules.total() // times, times, of_modules)


def _largest_first(found: Iterable[Growth]) -> list[Growth]:
    return sorted((each for each in found if each.nbytes >= LEAST_GROWTH), key=lambda growth: -growth.nbytes)


def _blocks(trace: Trace, begin: int, end: int) -> Iterator[_Block]:
    """Yield the blocks requested from event ``begin`` to before ``end``, without small ones and without parameters,
    gradients and optimizer states."""
    freed = {event.key: index for index, event in enumerate(trace.events) if isinstance(event, Free)}
    for index in range(begin, end):
        event = trace.events[index]
        if isinstance(event, Alloc):
            site = trace.sites[event.site]
            if site.owner is None and site.kind != SMALL:
                yield _Block(site, event.nbytes, index, freed.get(event.key, len(trace.events)))


def _place(site: Site) -> Place:
    return Place(site.kind, site.op, site.where, site.user_line)


def _code(site: Site) -> tuple[str, str, str]:
    return site.op, site.where, site.module
