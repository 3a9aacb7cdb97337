"""Interpolation of traces: from a few traced (batch, tokens) to any other, as only sizes change, not the event order.

The size of a storage is a product of dimensions. So its size formula is a constant times a monomial in batch and
tokens, or a constant plus a slope times batch * tokens. The traced points determine the formula. Where several formulas
fit, all must give the same size at the new point.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from memlab.simulator.trace.alike_steps import numbers_of, with_numbers
from memlab.simulator.trace.events import MAKE, Alloc, Event, HostAlloc
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import Item, amounts, fixed_fields, with_amounts

CHECKED = 3
"""Number of traced points that determine a size formula: one gives the constant, the second selects the monomial, the
third checks it."""

UNCHECKED = CHECKED - 1
"""Number of points that determine the formula when no check point is needed: if all points have as many tokens, a size
is constant or grows with the batch."""

MINIMUM_TOKENS = 2
"""Points with fewer tokens are always traced: with a single token some dimensions vanish, and some copies with
them."""

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
    # Blocks of a query gradient, each with a header (stand_ins/attention.py, efficient_workspaces).
    lambda b, t: b * (16 + 4 * 64 * 64) * -(-t // 64),
    lambda b, t: b * (16 + 4 * 128 * 128) * -(-t // 128),
)


class Interpolator:
    """The traces of one rank at a few points, from which :meth:`at` computes its trace at any other point."""

    def __init__(self, traces: Sequence[Trace], minimum: int = CHECKED):
        self._smooth_from = [trace.smooth_from for trace in traces]
        usable = [
            trace
            for trace in traces
            if trace.tokens >= MINIMUM_TOKENS and _is_smooth(trace.smooth_from, trace.micro * trace.tokens)
        ]
        self._of_one, self._of_more = (_table(usable, minimum, of_one) for of_one in (True, False))

    def at(self, micro: int, tokens: int) -> Trace | None:
        """Compute the trace at a point. ``None`` where the traces do not determine it: there are too few, their events
        come in different orders, a size fits no formula, two formulas that fit differ at this point, or kernels choose
        their sizes in another way."""
        table = self._of_one if micro == 1 else self._of_more
        smooth = all(_is_smooth(smooth_from, micro * tokens) for smooth_from in self._smooth_from)
        return table.at(micro, tokens) if table and smooth and tokens >= MINIMUM_TOKENS else None


@dataclass(frozen=True)
class _Table:
    """The traces at ``points``: their common part, and arrays of the numbers that differ, with a row for each point."""

    points: list[tuple[int, int]]
    base: Trace
    requests: list[int]  # indices of the requests for memory in base.events
    work: list[Item]
    numbers: np.ndarray  # sizes of the requests, or the fields of their sums; then FLOPs and bytes of the work

    def at(self, micro: int, tokens: int) -> Trace | None:
        if (numbers := _sizes_at(self.points, self.numbers, (micro, tokens))) is None:
            return None
        rest = iter(numbers.tolist())
        events = list(self.base.events)
        for index in self.requests:
            events[index] = with_numbers(events[index], tuple(islice(rest, len(numbers_of(events[index])))))
        work = [with_amounts(item, tuple(islice(rest, len(amounts(item))))) for item in self.work]
        return replace(self.base, micro=micro, tokens=tokens, events=events, work=work, seconds=0.0)


def _table(usable: Sequence[Trace], minimum: int, of_one: bool) -> _Table | None:
    """Build a table for a batch of one (``of_one``) or for larger batches; ``None`` if fewer than ``minimum`` traces
    can be used.

    A batch of one can differ from larger ones: a tensor that is contiguous anyway is not copied. So a trace of the
    same kind leads, and only traces with the same order of events are used.
    """
    if (leader := next((trace for trace in usable if (trace.micro == 1) == of_one), None)) is None:
        return None
    like = _skeleton(leader)
    chosen = _furthest_apart([trace for trace in usable if trace is leader or _skeleton(trace) == like])
    if len(chosen) < minimum:
        return None
    largest = max(chosen, key=lambda trace: trace.micro * trace.tokens)  # small allocations have no site
    base = replace(largest, launchers=leader.launchers)
    requests = [index for index, event in enumerate(base.events) if isinstance(event, MAKE)]
    return _Table(
        points=[(trace.micro, trace.tokens) for trace in chosen],
        base=base,
        requests=requests,
        work=leader.work,
        numbers=np.array([_numbers(trace, requests) for trace in chosen], dtype=np.int64),
    )


def _numbers(trace: Trace, requests: Sequence[int]) -> list[int]:
    """Return the numbers of a trace as in ``_Table.numbers``."""
    of_requests = (numbers_of(trace.events[index]) for index in requests)
    return list(chain.from_iterable(chain(of_requests, map(amounts, trace.work))))


def _is_smooth(smooth_from: int | None, tokens: int) -> bool:
    """Return whether the size formulas hold for this number of tokens in a batch."""
    return smooth_from is not None and tokens >= smooth_from


def _skeleton(trace: Trace) -> tuple:
    """Return the part of a trace that is the same at all points that can be interpolated."""
    work = [(type(item), fixed_fields(item)) for item in trace.work]
    return trace.phases, list(map(_event_skeleton, trace.events)), work


def _event_skeleton(event: Event) -> tuple:
    if isinstance(event, Alloc):
        return Alloc, event.key, event.stream, type(event.reduction)
    return (HostAlloc, event.key, event.pinned) if isinstance(event, HostAlloc) else (type(event), event)


def _furthest_apart(traces: Sequence[Trace]) -> list[Trace]:
    """Choose at most four traces whose batch and tokens differ the most: different values determine the formulas."""
    by_tokens = sorted(traces, key=lambda trace: (trace.tokens, trace.micro))
    by_micro = sorted(traces, key=lambda trace: (trace.micro, trace.tokens))
    order = [by_tokens[0], by_tokens[-1], by_micro[0], by_micro[-1], *by_tokens]
    return list({(trace.micro, trace.tokens): trace for trace in order}.values())[:4]


def _sizes_at(points: Sequence[tuple[int, int]], sizes: np.ndarray, at: tuple[int, int]) -> np.ndarray | None:
    """Compute the sizes at a new point; ``None`` if a size fits no formula or formulas that fit disagree. ``sizes`` has
    a row for each point and a column for each event."""
    lowest = np.full(sizes.shape[1], np.iinfo(np.int64).max)
    highest = np.full(sizes.shape[1], -1)
    monomials = list(_by_monomial(points, sizes, at))
    by_none = ~np.logical_or.reduce([fits for fits, _ in monomials])
    by_slope, affine = _affine(points, sizes, at)
    for fits, values in (*monomials, (by_slope & by_none, affine)):
        lowest = np.where(fits, np.minimum(lowest, values), lowest)
        highest = np.where(fits, np.maximum(highest, values), highest)
    return highest if np.array_equal(lowest, highest) else None


def _by_monomial(points, sizes: np.ndarray, at: tuple[int, int]):
    for monomial in MONOMIALS:
        constants, rests = np.divmod(sizes, np.array([[monomial(*point)] for point in points]))
        fits = (rests == 0).all(axis=0) & (constants == constants[0]).all(axis=0)
        yield fits, constants[0] * monomial(*at)


def _affine(points, sizes: np.ndarray, at: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Fit a constant plus a slope for each token of the batch."""
    counts = np.array([micro * tokens for micro, tokens in points])
    first, last = int(counts.argmin()), int(counts.argmax())
    slope, rest = np.divmod(sizes[last] - sizes[first], max(int(counts[last] - counts[first]), 1))
    fits = (rest == 0) & (slope > 0)
    fits &= (sizes - sizes[first] == slope * (counts - counts[first])[:, None]).all(axis=0)
    fits &= len(set(counts.tolist())) >= min(CHECKED, len(points))
    return fits, sizes[first] + slope * (at[0] * at[1] - int(counts[first]))


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
