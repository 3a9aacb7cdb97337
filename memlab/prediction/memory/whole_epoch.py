"""The whole epoch of a command: the steps that a shortened run has left out, as copies of steps that it ran.

What the allocator reserves depends on the order of all steps. ``Trace.order`` has that order by the sizes of the
batches (simulator/rank/short_epochs.py). A step that was left out is a copy of one with equal batches. Where none has
run, the sizes of its blocks follow from several steps that make the same blocks, or are those of the next larger step.
Blocks that hold a batch which the loader has fetched ahead follow the sizes of the next step. A step frees blocks that
the step before it has left: a copy frees those of the same origin (traces/shared_launch.py).
"""

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import chain, count, groupby, islice, pairwise
from typing import Any

import numpy as np

from memlab.core.sizes import MIB
from memlab.prediction.traces.shared_launch import copy_of, matched, origin
from memlab.simulator.allocator import CachingAllocator, parse
from memlab.simulator.trace.alike_steps import numbers_of, with_numbers
from memlab.simulator.trace.epoch_batches import EpochOrder
from memlab.simulator.trace.events import FREE, MAKE, OF_A_BLOCK, Alloc, BeginPhase, Event, made
from memlab.simulator.trace.trace_format import Piece, Trace, Traces, apply

MOST_EVENTS = 300_000
"""Work after which the rest of an epoch is left out: events of copies, and blocks that are compared before each copy.
A limit in seconds would give each prediction another length."""

DIFFERENT_BYTES = MIB
"""Steps are alike if the blocks that one finds or leaves and the other does not have fewer bytes."""

_Sizes = tuple[int, int | None]
"""Indices of the sizes of a window and of the next one; ``None``: not known."""


class _NotAlike(Exception):
    """A step finds or leaves blocks that another one does not."""


ORDER = "order"
"""``choice`` of a range in a record: a loader shuffles without a seed."""

ORDERS = 3
"""Other orders that are replayed."""


def other_orders(traces: Traces) -> list[dict[int, Trace]]:
    """Return the traces of the ranks in other orders of their epochs; empty where each run has the same order."""
    if not any(trace.order and trace.order.is_random and trace.order.shuffles_sizes for trace in traces.values()):
        return []
    orders = range(1, ORDERS + 1)
    return [{rank: with_whole_epoch(trace, shuffled_by=seed) for rank, trace in traces.items()} for seed in orders]


def with_whole_epoch(trace: Trace, shuffled_by: int | None = None) -> Trace:
    """Return the trace with all steps of its epoch, as far as they are replayed, and with their number in ``epochs``.

    Returns ``trace`` itself if no step was left out, or if the steps are not alike. ``shuffled_by``: seed of another
    order of the epoch.
    """
    order = trace.order
    if order is None or len(trace.steps) < order.steps_before + len(order.ran) * order.steps:
        return trace
    try:
        return _WholeRun(trace, order).whole(shuffled_by)
    except _NotAlike:
        return trace


class _CopiedPart:
    """Events of a part of the run that is copied, with the pieces that its BeginPhase events begin.

    ``phase``: at its beginning. ``uses``: blocks of others that it does not free. ``finds``: blocks of others that it
    frees, ``leaves``: blocks that it makes and does not free, each key -> origin, the oldest first. ``requests``:
    number of requests for device memory before it.
    """

    def __init__(self, trace: Trace, indices: list[int], pieces: Mapping[int, Piece], origins: Mapping[int, tuple]):
        """``indices``: of its events. ``pieces``: of the trace, by the index of their event. ``origins``: of blocks."""
        self.indices, self.events = indices, [trace.events[index] for index in indices]
        self.pieces = [pieces[index] for index in indices if index in pieces]
        begin: Any = self.events[0]  # a BeginPhase event
        self.phase = trace.phases[begin.phase].removeprefix("first_")
        own, freed = set(made(self.events)), {event.key for event in self.events if isinstance(event, FREE)}
        self.uses = {event.key for event in self.events if isinstance(event, OF_A_BLOCK)} - own - freed
        self.finds = {key: origins[key] for key in sorted(freed - own)}
        self.leaves = {key: origins[key] for key in sorted(own - freed)}
        self.requests = sum(isinstance(event, Alloc) for event in trace.events[: indices[0]])

    @cached_property
    def amounts(self) -> list[tuple[int, ...]]:
        """What the size of each block that it makes follows from: the fields of a sum, or the size itself."""
        return [numbers_of(event) for event in self.events if isinstance(event, MAKE)]

    @cached_property
    def form(self) -> list[tuple]:
        """What its events do to which of its own blocks: equal in parts that differ in sizes alone."""
        numbers = {key: number for number, key in enumerate(made(self.events))}
        return [
            (type(event), numbers.get(event.key), getattr(event, "reduction", None) is None)
            for event in self.events
            if isinstance(event, OF_A_BLOCK)
        ]


class _WholeRun:
    """A run whose steps are replayed: its events and pieces so far, and the allocator that they lead to.

    Steps are left out that repeat earlier steps from the same state of the allocator. This allocator has no limit: on a
    GPU that is almost full, where the cache is given back, a step that is left out could still change something.

    ``_left``: block that a step has left -> origin, the oldest first.
    """

    def __init__(self, trace: Trace, order: EpochOrder):
        self._trace, self._order = trace, order
        blocks = [event for event in trace.events if isinstance(event, MAKE)]
        self._origins = {event.key: origin(trace, event) for event in blocks}
        self._bytes = {event.key: event.nbytes for event in blocks}
        begins = trace.phase_begins
        self._piece_at = dict(zip(begins, trace.pieces, strict=True))
        self._cut([*begins, len(trace.events)])
        self._check_alike()
        # The second window is copied, too: it may have fetched a batch that follows it in the short run alone.
        self._start = order.given - (order.given - 1 in self._sources)
        self._first, self._last = (self._windows[each].indices[0] for each in (self._start, -1))
        self._allocator, self._alive = CachingAllocator(parse(trace.allocator_conf)), set[int]()
        self._left: dict[int, tuple] = {}
        self._events: list[Event] = []
        self._pieces = [piece for index, piece in self._piece_at.items() if index < self._first]
        self._requests = 0
        self._new_keys = count(1 + max(self._origins, default=0))
        self._amounts_of = cache(self._amounts)  # an epoch repeats the same sizes
        found = {key: where for part in self._windows for key, where in part.finds.items()}
        for event in trace.events[: self._first]:
            self._add(event, found.get(event.key) if isinstance(event, MAKE) else None)

    # --- parts of the run

    def _cut(self, bounds: Sequence[int]) -> None:
        """Find the windows that ran, and the parts beside steps after the first step. ``bounds``: of the pieces."""
        order, windows = self._order, defaultdict[int, list[int]](list)
        spans = zip(self._trace.pieces, pairwise(bounds), strict=True)
        beside: list[list[int]] = []
        for step, pieces in groupby(spans, lambda span: span[0].step):
            indices = [index for _, span in pieces for index in range(*span)]
            if step:
                windows[(step - 1 - order.steps_before) // order.steps] += indices
            elif step is None and windows:
                beside.append(indices)
        if not all(windows[number] for number in range(len(order.ran))):
            raise _NotAlike
        self._windows = [self._part(windows[number]) for number in range(len(order.ran))]
        self._beside = list(map(self._part, beside))
        planned = [part for part in self._beside if part.phase in (order.every or {})]
        # Of several in a phase, the one with most blocks.
        self._planned = {part.phase: part for part in sorted(planned, key=lambda part: len(part.amounts))}

    def _part(self, indices: list[int]) -> _CopiedPart:
        return _CopiedPart(self._trace, indices, self._piece_at, self._origins)

    def _check_alike(self) -> None:
        """Find the windows that are copied, the ``_sources``: the first ones need not be like the others. Raises
        :class:`_NotAlike` if another is not, or if what is done beside steps keeps memory.

        The last window has no batch to fetch ahead: it may leave other blocks than those before it.
        """
        kept, given = self._windows[-2].leaves, self._order.given
        finds = [self._is_like(kept, part.finds) for part in self._windows]
        leaves = [self._is_like(kept, part.leaves) for part in self._windows]
        keep_nothing = all(self._missing(part.leaves, part.finds) < DIFFERENT_BYTES for part in self._planned.values())
        if not (keep_nothing and all(finds[given:]) and all(leaves[given:-1])):
            raise _NotAlike
        # Without the first window: it makes what stays.
        self._sources = [each for each in range(1, len(finds)) if finds[each] and leaves[each]]
        forms = [part.form for part in self._windows]
        self._alike = {
            each: [other for other in self._sources if forms[other] == forms[each]] for each in self._sources
        }
        self._alike.setdefault(len(finds) - 1, [len(finds) - 1])

    def _is_like(self, blocks: Mapping[int, tuple], others: Mapping[int, tuple]) -> bool:
        return self._missing(blocks, others) + self._missing(others, blocks) < DIFFERENT_BYTES

    def _missing(self, blocks: Mapping[int, tuple], others: Mapping[int, tuple]) -> int:
        """Return the bytes of the blocks without a counterpart among the others."""
        return sum(self._bytes[key] for key in blocks.keys() - matched(blocks, others).keys())

    # --- the whole run

    def whole(self, shuffled_by: int | None) -> Trace:
        """Return the trace of the run with its epoch, in the order of the run or in another one."""
        trace, order = self._trace, self._order
        windows = [(place, number) for place, number in order.order if place >= self._start]
        has_last = bool(windows) and windows[-1][0] == order.windows - 1
        last = windows.pop()[1] if has_last else order.ran[-1][1]
        if shuffled_by is not None:  # the last window keeps its place: its last batch has the samples that are left
            numbers = [number for place, number in windows if place >= order.given]
            random.Random(shuffled_by).shuffle(numbers)
            first = len(windows) - len(numbers)
            windows[first:] = zip((place for place, _ in windows[first:]), numbers, strict=True)
        done = self._replay(windows, last)
        self._play_others({number for _, number in windows[:done]})
        last_of_run = self._windows[-1].indices[-1]
        elsewhere = [part for part in self._beside if part.phase in self._planned and part.indices[0] < last_of_run]
        planned = {index for part in elsewhere for index in part.indices}
        end = self._part([index for index in range(self._last, len(trace.events)) if index not in planned])
        phases = self._phases_before(order.windows - 1) if has_last and done == len(windows) else []
        amounts = self._amounts_of((last, None), len(order.ran) - 1)
        at = [*self._play(end, amounts, order.windows - 1, phases), len(self._events)]

        def moved(index: int) -> int:
            return min(index, self._first) if index < self._last else at[bisect_left(end.indices, index)]

        training = next((epoch for epoch in trace.epochs if epoch["purpose"] == "training"), None)
        replayed = order.steps * (self._start + done + has_last)
        counts = {"steps_of_epoch": order.steps * order.windows, "steps_replayed": replayed}
        return replace(
            trace,
            events=self._events,
            pieces=self._pieces,
            steps=list(map(moved, trace.steps)),
            events_before=list(map(moved, trace.events_before)),
            appearances=[each._replace(event=moved(each.event)) for each in trace.appearances],
            epochs=[{**epoch, **counts} if epoch is training else epoch for epoch in trace.epochs],
            order=None,
        )

    def _phases_before(self, place: int) -> list[str]:
        """Return the phases that a Trainer runs before the window at this place of the epoch."""
        order = self._order
        ends = range(order.steps_before + (place - 1) * order.steps + 1, order.steps_before + place * order.steps + 1)
        every = order.every or {}
        return [phase for phase in every if phase in self._planned and any(end % every[phase] == 0 for end in ends)]

    def _replay(self, windows: Sequence[tuple[int, int]], last: int) -> int:
        """Replay windows, each place and sizes, until that takes too much; return the number of those that are done.
        ``last``: sizes of the window behind them.

        Where the allocator is as it was before an earlier window, and equal ones follow, these change nothing more.
        """
        pairs = zip(windows, [*(number for _, number in windows[1:]), last], strict=True)
        units = [((number, behind), self._phases_before(place)) for (place, number), behind in pairs]
        seen: dict[Any, int] = {}
        at, compared, most = 0, 0, len(self._events) + MOST_EVENTS
        while at < len(units) and len(self._events) + compared < most:
            layout = self._allocator.layout(self._left)
            compared += sum(map(len, layout[1:]))
            if (before := seen.get(layout)) is not None:
                rest = range(len(units) - at)
                equal = next((each for each in rest if units[at + each] != units[before + each]), len(rest))
                at += equal // (at - before) * (at - before)
            seen[layout] = at
            if at < len(units):
                (sizes, phases), place = units[at], windows[at][0]
                like = place if place < self._order.given else self._nearest(sizes)
                self._play(self._windows[like], self._amounts_of(sizes, like), place, phases)
                at += 1
        return at

    def _play_others(self, replayed: set[int]) -> None:
        """Replay what has run between the first windows and the last one, if its sizes are not among ``replayed``."""
        given = self._order.given
        for part, (place, number) in zip(self._windows[given:-1], self._order.ran[given:-1], strict=True):
            if number not in replayed:
                self._play(part, place=place)
        for part in self._beside:
            if part.phase not in self._planned and self._first <= part.indices[0] < self._last:
                self._play(part)

    # --- sizes

    def _nearest(self, sizes: _Sizes) -> int:
        """Return the window to copy for one with these sizes: an equal one, or the next larger one of those whose sizes
        say how others follow."""

        def distance(window: int) -> tuple[int, bool, bool, float, int]:
            own = self._sizes_of(window)
            more = self._measures(own)[0] - self._measures(sizes)[0]
            is_only = len({self._sizes_of(each)[0] for each in self._alike[window]}) == 1
            return (own[0] != sizes[0]) + (own != sizes), is_only, more < 0, abs(more), -window

        return min(self._sources, key=distance)

    def _sizes_of(self, window: int) -> _Sizes:
        own, *following = (number for _, number in self._order.ran[window : window + 2])
        return own, following[0] if following else None

    def _measures(self, sizes: _Sizes) -> np.ndarray:
        """Return what the sizes of blocks can follow from: the elements of a window, each measure of its batches, and
        of those of the next window (not a number where that is not known)."""
        own = np.array(self._order.sizes[sizes[0]], float)
        ahead = np.full_like(own, np.nan) if sizes[1] is None else np.array(self._order.sizes[sizes[1]], float)
        return np.concatenate([[own[:, 0].sum()], own.T.ravel(), ahead.T.ravel()])

    def _amounts(self, wanted: _Sizes, like: int) -> dict[int, tuple[int, ...]]:
        """Return the amounts of the blocks of a window with the sizes ``wanted``, by keys in the window ``like``."""
        if wanted == self._sizes_of(like):
            return {}
        base, alike = self._windows[like], self._alike[like]
        known = np.array([list(chain.from_iterable(self._windows[each].amounts)) for each in alike], float)
        measures = np.array([self._measures(self._sizes_of(each)) for each in alike])
        batches = len(self._order.sizes[wanted[0]])
        found, followed = amounts_at(self._measures(wanted), measures, known, elements=1 + batches)
        if wanted[0] == self._sizes_of(like)[0]:  # only what holds batches of the next window differs
            is_ahead = followed > len(measures[0]) // 2
            found = np.where(is_ahead, found, known[alike.index(like)].astype(np.int64))
        rest = iter(found.tolist())
        keys = zip(made(base.events), base.amounts, strict=True)
        return {key: tuple(islice(rest, len(amounts))) for key, amounts in keys}

    # --- events

    def _play(
        self,
        part: _CopiedPart,
        amounts: Mapping[int, tuple[int, ...]] | None = None,
        place: int | None = None,
        phases: Sequence[str] = (),
    ) -> list[int]:
        """Append a copy of a part, and return the new indices of its events.

        ``amounts``: of the blocks that are of another size in it. ``place``: of a window in the epoch. ``phases``:
        beside steps, after what a window frees before its first request, such as gradients.
        """
        keys = {key: key for key in (*part.uses, *part.finds) if key in self._alive}
        others = {key: value for key, value in self._left.items() if key not in keys}
        keys |= matched({key: value for key, value in part.finds.items() if key not in keys}, others)
        pieces, shift, moved = iter(part.pieces), self._requests - part.requests, []
        first = min((piece.step for piece in part.pieces if piece.step is not None), default=0)
        later = self._order.steps_before + (place or 0) * self._order.steps + 1 - first
        for event in part.events:
            if phases and isinstance(event, MAKE):
                before = self._requests
                for phase in phases:
                    self._play(self._planned[phase])
                phases, shift = (), shift + self._requests - before
            moved.append(len(self._events))
            if (copy := copy_of(event, keys, self._new_keys, shift)) is None:
                continue
            if isinstance(event, BeginPhase):
                piece = next(pieces)
                step = None if place is None else piece.step
                self._pieces.append(piece if step is None else replace(piece, step_of_epoch=step + later))
            if amounts and isinstance(event, MAKE) and event.key in amounts:
                copy = with_numbers(copy, amounts[event.key])
            self._add(copy, self._origins[event.key] if isinstance(event, MAKE) else None)
        return moved

    def _add(self, event: Event, where: tuple | None) -> None:
        """Append an event. ``where``: origin of a block that a step makes."""
        apply(event, self._allocator)
        if isinstance(event, MAKE):
            self._alive.add(event.key)
            if where is not None:
                self._left[event.key] = where
        elif isinstance(event, FREE):
            self._alive.discard(event.key)
            self._left.pop(event.key, None)
        self._requests += isinstance(event, Alloc)
        self._events.append(event)


def amounts_at(
    wanted: np.ndarray, measures: np.ndarray, known: np.ndarray, elements: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the sizes of blocks follow from, for a step beside a few others that make the same blocks, and which
    measure each is a multiple of (-1: none).

    ``known``: a row for each step, a column for each amount. ``measures``: a row for each step, ``wanted``: of the step
    here; so many ``elements`` come first. An amount that is a multiple of a measure in all steps stays so, of the first
    such measure; any other follows the line over one of the ``elements`` that fits it best.
    """
    found, misfit = _on_a_line(wanted[0], measures[:, 0], known)
    for number in range(1, elements):
        line, its_misfit = _on_a_line(wanted[number], measures[:, number], known)
        found, misfit = np.where(its_misfit < misfit, line, found), np.minimum(its_misfit, misfit)
    followed = np.full(known.shape[1], -1)
    for number in reversed(range(len(wanted))):
        is_known = ~np.isnan(measures[:, number])
        measure, amounts = measures[is_known, number], known[is_known]
        if np.isnan(wanted[number]) or len(set(measure)) < 2:
            continue
        top = measure.argmax()
        fits = np.isclose(amounts * measure[top], np.outer(measure, amounts[top]), rtol=1e-9).all(axis=0)
        found = np.where(fits, amounts[top] * wanted[number] / measure[top], found)
        followed[fits] = number
    return np.maximum(np.rint(found), np.minimum(known.min(axis=0), 1)).astype(np.int64), followed


def _on_a_line(wanted: Any, elements: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the amounts on the lines through the steps with the fewest and the most elements, and how far the other
    steps are from these lines."""
    low, high = elements.argmin(), elements.argmax()
    slope = (known[high] - known[low]) / max(elements[high] - elements[low], 1)
    misfit = abs(known[high] + np.outer(elements - elements[high], slope) - known).max(axis=0)
    # A size that follows from values can differ much between steps of almost equal batches: no line leads far away.
    least, most = (wanted / max(elements[each], 1) for each in (low, high))
    ends = known.min(axis=0) * min(least, 1), known.max(axis=0) * max(most, 1)
    return np.clip(known[high] + slope * (wanted - elements[high]), *ends), misfit
