"""The whole epoch of a command: the steps that a shortened run has left out, as copies of steps that it ran.

What the allocator reserves depends on the order of all steps. ``Trace.order`` has that order by the sizes of the
batches (shadow/short_epochs.py). A step that was left out is a copy of one with equal batches. Where none has run, the
sizes of its blocks follow from several steps that make the same blocks, or are those of the next larger step. Blocks
that hold a batch which the loader has fetched ahead follow the sizes of the next step. A step frees blocks that the
step before it has left: a copy frees those of the same origin (trace/shared_launch.py).
"""

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, groupby, islice, takewhile
from types import MappingProxyType
from typing import Any

import numpy as np

from memlab.core.sizes import MIB
from memlab.predict.allocator import CachingAllocator, parse
from memlab.predict.trace.alike_steps import numbers_of, with_numbers
from memlab.predict.trace.epoch_batches import EpochOrder
from memlab.predict.trace.events import FREE, MAKE, OF_A_BLOCK, Alloc, BeginPhase, Event, Synchronize, made
from memlab.predict.trace.shared_launch import matched, origin
from memlab.predict.trace.trace_format import Piece, Trace, apply

MOST_EVENTS = 300_000
"""Events of copies after which the rest of an epoch is left out. Seconds would differ from prediction to prediction."""

DIFFERENT_BYTES = MIB
"""Steps are alike if the blocks that one finds or leaves and the other does not have fewer bytes."""

NO_OTHERS: Mapping[int, tuple[int, ...]] = MappingProxyType({})


_Sizes = tuple[int, int | None]
"""Indices of the sizes of a window and of the next one; ``None``: not known."""


class _NotAlike(Exception):
    """A step finds or leaves blocks that another one does not."""


ORDER = "order"
"""``choice`` of a range in a record: a loader shuffles without a seed."""

ORDERS = 3
"""Other orders that are replayed."""


def other_orders(traces: Mapping[int, Trace]) -> list[dict[int, Trace]]:
    """Return the traces of the ranks in other orders of their epochs; empty where each run has the same order."""
    if not any(trace.order and trace.order.is_random and len(trace.order.sizes) > 1 for trace in traces.values()):
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
        return _Epoch(trace, order).whole(shuffled_by)
    except _NotAlike:
        return trace


@dataclass(frozen=True)
class _Part:
    """Events of a part of the run that is copied, with the pieces that its BeginPhase events begin.

    ``finds``: blocks that it frees and has not made, ``leaves``: blocks that it makes and does not free, each key ->
    origin, the oldest first. ``requests``: number of requests for device memory before it.
    """

    trace: Trace
    indices: list[int]  # of its events in the trace
    pieces: list[Piece]
    finds: Mapping[int, tuple]
    leaves: Mapping[int, tuple]
    requests: int

    @cached_property
    def events(self) -> list[Event]:
        return [self.trace.events[index] for index in self.indices]

    @property
    def phase(self) -> str:
        begin: Any = self.events[0]  # a BeginPhase event
        return self.trace.phases[begin.phase].removeprefix("first_")

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

    def batches(self, number: int) -> list[int]:
        """Return for each block that it makes the batch whose forward or backward pass makes it, of ``number`` batches.

        A forward pass after a backward pass begins the next batch.
        """
        found, batch, phase = [], 0, ""
        for event in self.events:
            if isinstance(event, BeginPhase):
                before, phase = phase, self.trace.phases[event.phase].removeprefix("first_") or phase
                batch += (before, phase) == ("backward", "forward")
            elif isinstance(event, MAKE):
                found.append(min(batch, number - 1))
        return found


class _Epoch:
    """A run whose steps are replayed: its events and pieces so far, and the allocator that they lead to.

    ``_left``: block that a step has left -> origin, the oldest first.
    """

    def __init__(self, trace: Trace, order: EpochOrder):
        self._trace, self._order = trace, order
        self._origins = {event.key: origin(trace, event) for event in trace.events if isinstance(event, MAKE)}
        self._bytes = {event.key: event.nbytes for event in trace.events if isinstance(event, MAKE)}
        begins = [index for index, event in enumerate(trace.events) if isinstance(event, BeginPhase)]
        self._piece_at = dict(zip(begins, trace.pieces, strict=True))
        windows, beside = self._cut()
        self._windows = list(map(self._part, windows))
        self._beside = list(map(self._part, beside))
        every = order.every or {}
        self._planned_parts = sorted(
            (part for part in self._beside if part.phase in every), key=lambda part: len(part.amounts)
        )
        self._planned = {part.phase: part for part in self._planned_parts}  # of several, the one with most blocks
        self._check_alike()
        # The second window is copied, too: it may have fetched a batch that follows it in the short run alone.
        self._start = order.given - (order.given - 1 in self._alike)
        self._first, self._last = windows[self._start][0], windows[-1][0]
        self._allocator, self._alive = CachingAllocator(parse(trace.allocator_conf)), set[int]()
        self._left: dict[int, tuple] = {}
        self._events: list[Event] = []
        self._pieces = [piece for index, piece in self._piece_at.items() if index < self._first]
        self._requests = 0
        self._new_keys = count(1 + max(self._origins, default=0))
        found = {key: where for part in self._windows for key, where in part.finds.items()}
        for event in trace.events[: self._first]:
            self._add(event, found.get(event.key) if isinstance(event, MAKE) else None)

    # --- parts of the run

    def _cut(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return the indices of the events of each window that ran, and of each part beside steps after the first
        step."""
        order = self._order
        at: list[int | None] = []  # of each event: its window
        for index in range(len(self._trace.events)):
            piece = self._piece_at.get(index)
            known = at[-1] if piece is None else piece.step and (piece.step - 1 - order.steps_before) // order.steps
            at.append(known)
        windows: dict[int, list[int]] = defaultdict(list)
        beside: list[list[int]] = []
        for window, indices in groupby(range(len(at)), at.__getitem__):
            if window is not None:
                windows[window] += indices
            elif windows:
                beside.append(list(indices))
        found = [windows[number] for number in range(len(order.ran))]
        if not all(found):
            raise _NotAlike
        return found, beside

    def _part(self, indices: list[int]) -> _Part:
        events = [self._trace.events[index] for index in indices]
        own, freed = set(made(events)), {event.key for event in events if isinstance(event, FREE)}
        return _Part(
            self._trace,
            indices,
            [self._piece_at[index] for index in indices if index in self._piece_at],
            finds={key: self._origins[key] for key in sorted(freed - own)},
            leaves={key: self._origins[key] for key in sorted(own - freed)},
            requests=sum(isinstance(event, Alloc) for event in self._trace.events[: indices[0]]),
        )

    def _check_alike(self) -> None:
        """Leave out the first windows that are not like the last one. Raises :class:`_NotAlike` if another is not, or
        if what is done beside steps keeps memory."""
        kept = self._windows[-1].leaves
        is_like = [
            all(
                self._missing(kept, each) + self._missing(each, kept) < DIFFERENT_BYTES
                for each in (part.leaves, part.finds)
            )
            for part in self._windows
        ]
        keep = [self._missing(part.leaves, part.finds) >= DIFFERENT_BYTES for part in self._planned.values()]
        if not all(is_like[self._order.given :]) or any(keep):
            raise _NotAlike
        is_like[0] = False  # it makes what stays
        sources = [each for each, is_source in enumerate(is_like) if is_source]
        forms = [part.form for part in self._windows]
        self._alike = {each: [other for other in sources if forms[other] == forms[each]] for each in sources}

    def _missing(self, blocks: Mapping[int, tuple], others: Mapping[int, tuple]) -> int:
        """Return the bytes of the blocks without a counterpart among the others."""
        return sum(self._bytes[key] for key in blocks.keys() - matched(blocks, others).keys())

    # --- the whole run

    def whole(self, shuffled_by: int | None) -> Trace:
        """Return the trace of the run with its epoch, in the order of the run or in another one."""
        order = self._order
        windows = [(place, number) for place, number in order.order if place >= self._start]
        if shuffled_by is not None:
            numbers = [number for place, number in windows if place >= order.given]
            random.Random(shuffled_by).shuffle(numbers)
            first = len(windows) - len(numbers)
            windows[first:] = zip((place for place, _ in windows[first:]), numbers, strict=True)
        has_last = bool(windows) and windows[-1][0] == order.windows - 1
        last = windows.pop()[1] if has_last else order.ran[-1][1]
        done = self._replay(windows, last)
        self._play_others([number for _, number in windows[:done]])
        last_of_run = self._windows[-1].indices[-1]
        planned = {index for part in self._planned_parts if part.indices[0] < last_of_run for index in part.indices}
        end = self._part([index for index in range(self._last, len(self._trace.events)) if index not in planned])
        phases = self._phases_before(order.windows - 1) if has_last and done == len(windows) else []
        amounts = self._amounts_of((last, None), like=len(order.ran) - 1)
        moved = self._play(end, amounts, order.windows - 1, phases)
        steps = order.steps * (self._start + done + has_last)
        return self._with_marks(end, moved, {"steps_of_epoch": order.steps * order.windows, "steps_replayed": steps})

    def _phases_before(self, place: int) -> list[str]:
        """Return the phases that a Trainer runs before the window at this place of the epoch."""
        order = self._order
        ends = range(order.steps_before + (place - 1) * order.steps + 1, order.steps_before + place * order.steps + 1)
        every = {phase: steps for phase, steps in (order.every or {}).items() if phase in self._planned}
        return [phase for phase, steps in every.items() if any(end % steps == 0 for end in ends)]

    def _replay(self, windows: Sequence[tuple[int, int]], last: int) -> int:
        """Replay windows, each place and sizes, until there are too many events; return the number of those that are
        done. ``last``: sizes of the window behind them.

        Where the allocator is as it was before an earlier window, and equal ones follow, these change nothing more.
        """
        following = [*(number for _, number in windows[1:]), last]
        units = [
            (number, behind, self._phases_before(place))
            for (place, number), behind in zip(windows, following, strict=True)
        ]
        seen: dict[Any, int] = {}
        at, most = 0, len(self._events) + MOST_EVENTS
        while at < len(units) and len(self._events) < most:
            layout = self._allocator.layout(self._left)
            if (before := seen.get(layout)) is not None:
                pairs = zip(units[at:], units[before:], strict=False)
                equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                at += equal // (at - before) * (at - before)
            seen[layout] = at
            if at < len(units):
                number, behind, phases = units[at]
                place = windows[at][0]
                like = place if place < self._order.given else self._nearest(number, behind)
                self._play(self._windows[like], self._amounts_of((number, behind), like), place, phases)
                at += 1
        return at

    def _play_others(self, replayed: Collection[int]) -> None:
        """Replay what has run between the first windows and the last one, if it is not among what was replayed."""
        order = self._order
        pairs = [*zip(self._windows, order.ran, strict=True)][order.given : -1]
        others = [(part, place) for part, (place, number) in pairs if number not in replayed]
        between = [part for part in self._beside if self._first <= part.indices[0] < self._last]
        beside = [part for part in between if part.phase not in self._planned]
        for part, place in (*others, *((part, None) for part in beside)):
            self._play(part, place=place)

    def _nearest(self, number: int, following: int | None) -> int:
        """Return the window to copy for one with these sizes: an equal one, or the next larger one of those whose sizes
        say how others follow."""
        sizes = self._order.sizes

        def distance(window: int) -> tuple[int, bool, bool, int, int]:
            own, its_following = self._sizes_of(window)
            more = sum(batch[0] for batch in sizes[own]) - sum(batch[0] for batch in sizes[number])
            differ = (own != number) + ((own, its_following) != (number, following))
            shapes = {self._sizes_of(each)[0] for each in self._alike[window]}
            return differ, len(shapes) == 1, more < 0, abs(more), -window

        return min(self._alike, key=distance)

    def _sizes_of(self, window: int) -> _Sizes:
        own, *following = (number for _, number in self._order.ran[window : window + 2])
        return own, following[0] if following else None

    def _amounts_of(self, wanted: _Sizes, like: int) -> dict[int, tuple[int, ...]]:
        """Return the amounts of the blocks of a window with the sizes ``wanted``, by keys in the window ``like``."""
        if wanted == self._sizes_of(like):
            return {}
        base, alike = self._windows[like], self._alike[like]
        number = len(self._order.sizes[wanted[0]])
        of_blocks = zip(base.batches(number), base.amounts, strict=True)
        batches = np.array([batch for batch, amounts in of_blocks for _ in amounts], dtype=int)
        known = np.array([list(chain.from_iterable(self._windows[each].amounts)) for each in alike], dtype=float)
        rows = [wanted, *map(self._sizes_of, alike)]
        # Of a window and the next one. What follows the last one is not known.
        sizes = np.array([[*self._order.sizes[a], *self._order.sizes[a if b is None else b]] for a, b in rows], float)
        is_known = [following is not None for _, following in rows[1:]]
        own, following = (sizes[1:, batches + ahead, 0] for ahead in (0, 1))
        is_ahead = _follow(known[is_known], following[is_known]) & ~_follow(known, own)
        measures = sizes[:, batches + is_ahead]
        found = amounts_at(measures[0], measures[1:], known)
        if wanted[0] == self._sizes_of(like)[0]:
            found = np.where(is_ahead, found, known[alike.index(like)].astype(np.int64))
        rest = iter(found.tolist())
        keys = zip(made(base.events), base.amounts, strict=True)
        return {key: tuple(islice(rest, len(amounts))) for key, amounts in keys}

    # --- events

    def _play(
        self,
        part: _Part,
        amounts: Mapping[int, tuple[int, ...]] = NO_OTHERS,
        place: int | None = None,
        phases: Sequence[str] = (),
    ) -> list[int]:
        """Append a copy of a part, and return the new indices of its events.

        ``amounts``: of the blocks that are of another size in it. ``place``: of a window in the epoch. ``phases``:
        beside steps, after what a window frees before its first request, such as gradients.
        """
        keys = {key: key for key in part.finds if key in self._alive}
        others = {key: value for key, value in self._left.items() if key not in keys}
        keys |= matched({key: value for key, value in part.finds.items() if key not in keys}, others)
        pieces, shift, moved = iter(part.pieces), self._requests - part.requests, []
        first = min((piece.step for piece in part.pieces if piece.step is not None), default=0)
        later = self._order.steps_before + (place or 0) * self._order.steps + 1 - first
        event: Any
        for event in part.events:
            where = None
            moved.append(len(self._events))
            if isinstance(event, MAKE):
                for phase in phases:
                    self._play(self._planned[phase])
                phases = ()
                where = self._origins[event.key]
                key, keys[event.key] = event.key, next(self._new_keys)
                event = event._replace(key=keys[key])
                if key in amounts:
                    sized = with_numbers(event, amounts[key])
                    event = sized._replace(site=event.site) if isinstance(event, Alloc) else sized
            elif isinstance(event, OF_A_BLOCK):
                event = event._replace(key=keys.get(event.key, event.key))
                if event.key not in self._alive:
                    continue  # a small block that the copies before it have not left
            elif isinstance(event, Synchronize):
                event = Synchronize(max(event.requests + shift, 0))
            elif isinstance(event, BeginPhase):
                piece = next(pieces)
                is_copy = place is not None and piece.step is not None
                self._pieces.append(replace(piece, step_of_epoch=piece.step + later) if is_copy else piece)
            self._add(event, where)
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

    def _with_marks(self, end: _Part, at: Sequence[int], counts: Mapping[str, int]) -> Trace:
        """Return the new trace. ``at``: the new indices of the events of its ``end``. ``counts``: of steps."""
        trace, of_end = self._trace, [*at, len(self._events)]

        def moved(index: int) -> int:
            return min(index, self._first) if index < self._last else of_end[bisect_left(end.indices, index)]

        training = next((epoch for epoch in trace.epochs if epoch["purpose"] == "training"), None)
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


def _follow(known: np.ndarray, measure: np.ndarray) -> np.ndarray:
    """Return for each column whether the amounts are multiples of a measure that is not the same in all rows."""
    if len(known) < 2:
        return np.zeros(known.shape[1], dtype=bool)
    columns, high = np.arange(known.shape[1]), measure.argmax(axis=0)
    largest, top = known[high, columns], measure[high, columns]
    return (measure.min(axis=0) < top) & np.isclose(known * top, largest * measure, rtol=1e-9).all(axis=0)


def amounts_at(wanted: np.ndarray, measures: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return what the sizes of blocks follow from, for batches beside those of a few steps that make the same blocks.

    ``known``: a row for each step, a column for each amount. ``measures``: of the batch behind each amount in each
    step, ``wanted``: of its batch here. An amount that is a multiple of one measure in all steps stays so; any other
    lies on the line through the steps with the fewest and the most elements.
    """
    columns, elements = np.arange(known.shape[1]), measures[:, :, 0]
    low, high = elements.argmin(axis=0), elements.argmax(axis=0)
    largest, measure = known[high, columns], measures[high, columns]
    span = np.maximum(elements[high, columns] - elements[low, columns], 1)
    slope = (largest - known[low, columns]) / span
    found = largest + slope * (wanted[:, 0] - elements[high, columns])
    # A size that follows from values can differ much between steps of almost equal batches: no line leads far away.
    least, most = (wanted[:, 0] / np.maximum(elements[each, columns], 1) for each in (low, high))
    found = np.clip(found, known.min(axis=0) * np.minimum(least, 1), known.max(axis=0) * np.maximum(most, 1))
    for number in reversed(range(wanted.shape[1])):  # the number of elements decides where it fits
        multiple = largest * wanted[:, number] / np.maximum(measure[:, number], 1)
        found = np.where(_follow(known, measures[:, :, number]), multiple, found)
    return np.maximum(np.rint(found), np.minimum(known.min(axis=0), 1)).astype(np.int64)
