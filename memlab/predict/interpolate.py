"""From a few traced (batch, tokens) to any other: the sequence of events is the same, only the sizes change.

A storage is a product of dimensions, so its size is a monomial in batch and tokens (times a constant), or a constant
plus one in batch * tokens. Which one, the traced points say; where they leave a choice, it must make no difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from memlab.predict.events import ALLOC, HOST_ALLOC, Trace
from memlab.predict.work import FIRST_SIZE, Item

ENOUGH = 3
"""Traced points that decide a size: one gives the constant, one tells the monomials apart, one more checks."""

MINIMUM_TOKENS = 2
"""With a single token some dimensions vanish, and with them copies: such a point is only ever traced."""

MONOMIALS: tuple[Callable[[int, int], int], ...] = (
    lambda b, t: 1,
    lambda b, t: b,
    lambda b, t: t,
    lambda b, t: b * t,
    lambda b, t: t * t,
    lambda b, t: b * t * t,
    lambda b, t: b * (t + 1),  # a sample with the token after its last
    lambda b, t: b * t * _rounded(t, 16),  # rows of a mask, as the memory-efficient kernel wants them
    # Attention kernels work on rows of 32 or 128.
    lambda b, t: b * _rounded(t, 32),
    lambda b, t: b * _rounded(t, 128),
)


def interpolate(traces: Sequence[Trace], micro: int, tokens: int) -> Trace | None:
    """The trace of one rank at (micro, tokens), computed from its traces at other points.

    ``None`` where they do not decide it: too few, events in another order, or a size that fits no monomial, or two
    monomials that differ at the point asked for, or kernels that choose their sizes in another way.
    """
    if tokens < MINIMUM_TOKENS or not all(_is_smooth(trace, micro * tokens) for trace in traces):
        return None
    usable = [
        trace for trace in traces if trace.tokens >= MINIMUM_TOKENS and _is_smooth(trace, trace.micro * trace.tokens)
    ]
    alike = _alike(usable, micro)
    chosen = _spread(alike)
    if len(chosen) < ENOUGH:
        return None
    base = max(chosen, key=lambda trace: trace.micro * trace.tokens)  # the least of it is too small to have a site
    points = [(trace.micro, trace.tokens) for trace in chosen]
    where = [index for index, event in enumerate(base.events) if event[0] in (ALLOC, HOST_ALLOC)]
    sizes = np.array([[trace.events[index][2] for index in where] for trace in chosen], dtype=np.int64)
    found = _sizes_at(points, sizes, (micro, tokens))
    leader = next(trace for trace in alike if (trace.micro == 1) == (micro == 1))
    work = work_at([trace.work for trace in chosen], points, (micro, tokens), leader.work)
    if found is None or work is None:
        return None
    events = list(base.events)
    for index, nbytes in zip(where, found.tolist(), strict=True):
        event = events[index]
        events[index] = (*event[:2], nbytes, *event[3:])
    return replace(base, micro=micro, tokens=tokens, events=events, work=work, seconds=0.0)


def work_at(
    works: Sequence[Sequence[Item]], points: Sequence[tuple[int, int]], at: tuple[int, int], like: Sequence[Item]
) -> list[Item] | None:
    """The work of a step at another point: the items of ``like`` in the same order, with other figures."""
    figures = [[figure for item in work for figure in item[FIRST_SIZE.get(item[0], len(item)) :]] for work in works]
    found = _sizes_at(points, np.array(figures, dtype=np.int64), at)
    if found is None:
        return None
    rest = iter(found.tolist())
    skeletons = ((item, FIRST_SIZE.get(item[0], len(item))) for item in like)
    return [(*item[:first], *islice(rest, len(item) - first)) for item, first in skeletons]


def _is_smooth(trace: Trace, tokens: int) -> bool:
    """Whether sizes grow as monomials do in the neighbourhood of so many tokens in a batch."""
    return trace.smooth_from is not None and tokens >= trace.smooth_from


def _alike(traces: Sequence[Trace], micro: int) -> list[Trace]:
    """The traces whose events come in the order that (micro, ...) has.

    A batch of one can differ from larger ones (what is contiguous anyway is not copied), so one of its own kind leads.
    """
    leader = next((trace for trace in traces if (trace.micro == 1) == (micro == 1)), None)
    return [trace for trace in traces if leader is not None and _skeleton(trace) == _skeleton(leader)]


def _skeleton(trace: Trace) -> tuple:
    # How many views lie between two kernels may depend on the batch, too; it moves no memory.
    work = [(item[0], *item[2 : FIRST_SIZE.get(item[0], len(item))], len(item)) for item in trace.work]
    return trace.phases, [event[:2] + event[3:4] for event in trace.events], work


def _spread(traces: Sequence[Trace]) -> list[Trace]:
    """At most four, as far apart as there are: what decides the monomials is that batch and tokens differ."""
    if not traces:
        return []
    by_tokens = sorted(traces, key=lambda trace: (trace.tokens, trace.micro))
    by_micro = sorted(traces, key=lambda trace: (trace.micro, trace.tokens))
    order = [by_tokens[0], by_tokens[-1], by_micro[0], by_micro[-1], *by_tokens]
    unique = {(trace.micro, trace.tokens): trace for trace in order}
    return list(unique.values())[:4]


def _sizes_at(points: Sequence[tuple[int, int]], sizes: np.ndarray, at: tuple[int, int]) -> np.ndarray | None:
    """``sizes`` has a row for each point and a column for each event."""
    lowest = np.full(sizes.shape[1], np.iinfo(np.int64).max)
    highest = np.full(sizes.shape[1], -1)
    for fits, values in (*_by_monomial(points, sizes, at), _affine(points, sizes, at)):
        lowest = np.where(fits, np.minimum(lowest, values), lowest)
        highest = np.where(fits, np.maximum(highest, values), highest)
    return highest if np.array_equal(lowest, highest) else None


def _by_monomial(points, sizes: np.ndarray, at: tuple[int, int]):
    for monomial in MONOMIALS:
        values = np.array([[monomial(*point)] for point in points])
        constants, rests = np.divmod(sizes, values)
        fits = (rests == 0).all(axis=0) & (constants == constants[0]).all(axis=0)
        yield fits, constants[0] * monomial(*at)


def _affine(points, sizes: np.ndarray, at: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """A constant and so much for each token of the batch, for what no monomial fits."""
    counts = np.array([micro * tokens for micro, tokens in points])
    first, last = int(counts.argmin()), int(counts.argmax())
    slope, rest = np.divmod(sizes[last] - sizes[first], max(int(counts[last] - counts[first]), 1))
    fits = (rest == 0) & (slope > 0)
    fits &= (sizes - sizes[first] == slope * (counts - counts[first])[:, None]).all(axis=0)
    fits &= len(set(counts.tolist())) >= ENOUGH
    alone = ~np.logical_or.reduce([fits for fits, _ in _by_monomial(points, sizes, at)])
    return fits & alone, sizes[first] + slope * (at[0] * at[1] - int(counts[first]))


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
