"""Steps that are alike: what a decoding step of a generation does at any length, from a few that were recorded.

Each decoding step requests the blocks that the one before it requested; their sizes grow with the length of the
sequence. A size is a product of dimensions, and kernels round the length up to a multiple of 8. So the sizes at lengths
that are 1 or 8 apart are values of a polynomial of degree 1 (with a cache of keys and values) or 2 (without one). Where
a length is rounded up to a multiple of 32 or 128, a law ends at each of them, and another one is found.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from memlab.simulator.trace.columns import tuple_of
from memlab.simulator.trace.events import FREE, MAKE, Alloc, BeginPhase, Event, Workspace, made, of_kinds
from memlab.simulator.trace.reduction_scratch import scratch_of
from memlab.simulator.trace.trace_format import Site
from memlab.simulator.trace.work_items import BeginWorkPhase, StepWork, amounts, with_amounts

LAWS = ((1, 1), (1, 2), (8, 1), (8, 2))
"""Periods and degrees, those that need fewer recorded steps first."""

LEAST = 9
"""Recorded steps that a law needs: among so many is one just before a multiple of 8, and one just after it."""

MOST_STEPS = 25
"""Recorded steps that any law needs."""

CHECKED_EVERY = 32
"""Tokens after which a step is traced again, just after a multiple of 32, where sizes that are rounded up change."""


NO_SITE = -1
"""Stands for the site of a request whose size differs from the recorded one: the site has another shape."""


_SIZED = (*MAKE, Workspace)
"""Events with a size."""

_BESIDE = (Workspace, BeginPhase)
"""Events of a step that name no block."""

_CUTS = (BeginPhase, BeginWorkPhase)
"""What begins a phase of a step, among its events and in its work."""


class Left(NamedTuple):
    """Tensor that a step leaves behind. ``block``: number of its block among those that the step makes."""

    block: int
    shape: tuple[int, ...]
    dtype: Any
    device: Any


class Outline(NamedTuple):
    """The part of a :class:`AlikeStep` that a later step is compared with. A whole step has a million objects."""

    size: Any
    amounts: np.ndarray
    form: int


@dataclass(frozen=True)
class AlikeStep:
    """A part of the run: a decoding step, or a micro-step.

    size    tokens of a sequence after a decoding step; measures of the batch of a micro-step (measured_steps.py)
    events  name a block by its number among those that the step makes, or by -1 - its number among those that the step
            finds and frees
    sites   of each request for device memory, also of a small one, without their shapes
    shapes  of these sites
    others  whatever else is equal in steps that are alike
    """

    size: Any
    events: list[Any]
    sites: list[Site]
    shapes: list[tuple[int, ...]]
    work: StepWork
    left: list[Left]
    others: Any

    @cached_property
    def parts(self) -> list[Any]:
        """Events, shapes, items of work and what is left: all that has numbers which may follow from the length."""
        return [*self.events, *self.shapes, *self.work.items, *self.left]

    @cached_property
    def starts(self) -> np.ndarray:
        """Index in ``amounts`` of the first number of each part, and their number."""
        return np.cumsum([0, *(len(numbers_of(part)) for part in self.parts)])

    @cached_property
    def amounts(self) -> np.ndarray:
        """The numbers of all parts: sizes, fields of reductions, dimensions, FLOPs and bytes."""
        return np.fromiter(chain.from_iterable(map(numbers_of, self.parts)), dtype=np.int64)

    @cached_property
    def form(self) -> int:
        """Hash of everything that must be equal in two steps that are alike. ``others`` needs a ``repr`` that says all
        of it."""
        freed = np.array([event.key for event in self.events if isinstance(event, FREE)])  # hash(-1) equals hash(-2)
        work = (tuple(self.work.events_before), *self.work[2:])
        return hash((*map(_without_numbers, self.parts), *self.sites, work, repr(self.others), freed.tobytes()))

    @property
    def outline(self) -> Outline:
        return Outline(self.size, self.amounts, self.form)

    def at(self, size: Any, amounts: np.ndarray) -> "AlikeStep":
        """Return the step that is alike at another size, with its amounts."""
        parts, starts, numbers = self.parts.copy(), self.starts.tolist(), amounts.tolist()
        changed = np.searchsorted(self.starts, np.flatnonzero(amounts != self.amounts), side="right") - 1
        for index in np.unique(changed).tolist():
            parts[index] = with_numbers(parts[index], tuple(numbers[starts[index] : starts[index + 1]]), NO_SITE)
        rest = iter(parts)
        events, shapes, items, left = (
            list(islice(rest, len(each))) for each in (self.events, self.shapes, self.work.items, self.left)
        )
        return AlikeStep(size, events, self.sites, shapes, self.work._replace(items=items), left, self.others)

    def phases(self) -> Iterator[tuple[list[Any], StepWork]]:
        """Yield the events and the work of each phase, without the BeginPhase and BeginWorkPhase between them."""
        work = self.work
        ends = [[n for n, _ in of_kinds(parts, *_CUTS)] for parts in (self.events, work.items)]
        event = item = 0
        for event_end, item_end in zip([*ends[0], None], [*ends[1], None], strict=True):
            last = work if item_end is None else work.items[item_end]
            before = [number - event for number in work.events_before[item:item_end]]
            counted = StepWork(work.items[item:item_end], before, last.operators, last.modules)
            yield self.events[event:event_end], counted
            event, item = (event_end or 0) + 1, (item_end or 0) + 1


def renamed(events: Sequence[Any], found: Sequence[int], left: Sequence[int]) -> list[Event] | None:
    """Return the events of a step with the numbers of :class:`AlikeStep` for blocks; ``found``: keys of the blocks that
    the step finds, ``left``: of those that it leaves.

    ``None`` where the step does something else than to make blocks, to free those that it found, and to leave others in
    their place.
    """
    numbers = {key: -1 - number for number, key in enumerate(found)} | {key: n for n, key in enumerate(made(events))}
    if len({*found, *left}) < len(found) + len(left):  # tensors that share a block
        return None
    if not all(type(event) in _BESIDE or (isinstance(event, MAKE + FREE) and event.key in numbers) for event in events):
        return None
    if numbers.keys() - {event.key for event in events if isinstance(event, FREE)} != set(left):
        return None
    return [event if type(event) in _BESIDE else type(event)(numbers[event.key], *event[1:]) for event in events]


class Law:
    """What a step does at any length: polynomials through the last of the recorded ``steps``, which are consecutive."""

    def __init__(self, steps: Sequence[AlikeStep], period: int, degree: int):
        self._period = period
        self._steps: dict[int, AlikeStep] = {}
        self._differences: dict[int, list[np.ndarray]] = {}
        for last in range(len(steps) - period, len(steps)):
            chosen = steps[last - degree * period : last + 1 : period]
            self._steps[chosen[0].size % period] = chosen[0]
            self._differences[chosen[0].size % period] = _differences([step.amounts for step in chosen])
        self._checked = {step.size for step in steps}
        self._until = math.inf  # the first length where a traced step was another one

    @classmethod
    def of(cls, steps: Sequence[AlikeStep]) -> "Law | None":
        """Find the law of the last of the consecutive ``steps``; ``None`` if they are not alike, or too few."""
        for period, degree in LAWS:
            span = (degree + 1) * period
            chosen = steps[-max(LEAST, span + 1) :]
            if len(chosen) < max(LEAST, span + 1):
                continue
            if all(_goes_on(chosen[last - span : last + 1 : period]) for last in range(span, len(chosen))):
                return cls(chosen, period, degree)
        return None

    def at(self, length: int) -> AlikeStep | None:
        """Return the step at a length; ``None`` where it is to be traced."""
        if length >= self._until or (length % CHECKED_EVERY == 1 and length not in self._checked):
            return None
        return self._steps[length % self._period].at(length, self._amounts(length))

    def holds(self, step: AlikeStep) -> bool:
        """Return whether a traced step is what the law says."""
        own = self._steps[step.size % self._period]
        if step.size >= self._until or step.form != own.form:
            return False
        is_equal = np.array_equal(step.amounts, self._amounts(step.size))
        self._checked |= {step.size} if is_equal else set()
        return is_equal

    def end(self, length: int) -> None:
        """Let the law hold below this length only."""
        self._until = min(self._until, length)

    def _amounts(self, length: int) -> np.ndarray:
        """Evaluate Newton's polynomials, whose differences are whole numbers."""
        residue = length % self._period
        periods = (length - self._steps[residue].size) // self._period
        first, *rest = self._differences[residue]
        found, factor = first, 1
        for order, difference in enumerate(rest):
            factor = factor * (periods - order) // (order + 1)
            found = found + factor * difference
        return found


def _differences(rows: list[np.ndarray]) -> list[np.ndarray]:
    """Return the first of the rows, of their differences, of the differences of these, and so on."""
    return [np.diff(np.stack(rows[: order + 1]), order, axis=0)[0] for order in range(len(rows))]


def _goes_on(steps: Sequence[AlikeStep]) -> bool:
    """Return whether the last step lies on the polynomials through those before it."""
    return all(step.form == steps[-1].form for step in steps[:-1]) and not np.any(
        _differences([step.amounts for step in steps])[-1]
    )


def numbers_of(part: Any) -> tuple[int, ...]:
    """Return the numbers of a part that may follow from the length."""
    kind = type(part)  # comparing types is faster than isinstance
    if kind is tuple:
        return part
    if kind in FREE:
        return ()
    if kind in _SIZED:
        return getattr(part, "reduction", None) or (part.nbytes,)
    return part.shape if kind is Left else amounts(part)


def with_numbers(part: Any, numbers: tuple[int, ...], site: int | None = None) -> Any:
    """Return the part with other numbers. ``site``: of a request for device memory, in place of its own."""
    kind = type(part)
    if kind is Alloc:
        scratch = None if part.reduction is None else scratch_of(numbers)
        nbytes = numbers[0] if scratch is None else scratch.buffer_bytes
        return tuple_of(Alloc, (part.key, nbytes, part.stream, part.site if site is None else site, scratch))
    if kind is tuple:
        return numbers
    if kind in _SIZED:
        return part._replace(nbytes=numbers[0])
    return part._replace(shape=numbers) if kind is Left else with_amounts(part, numbers)


def _without_numbers(part: Any) -> tuple:
    """Return the type of a part, and all fields that must be equal in steps that are alike."""
    kind, numbers = type(part), len(numbers_of(part))
    if kind is Alloc:
        return Alloc, numbers, part.key, part.stream, part.reduction is None
    if kind in _CUTS:
        return kind, part[:-1]  # the first phase of its kind has another name
    return kind, numbers, part if kind in FREE else with_numbers(part, (0,) * numbers)
