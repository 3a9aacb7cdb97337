"""Ledger of a rank: who holds the memory at chosen moments of its trace, down to the line of code; and the slack."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from memlab.predict.allocator import CachingAllocator, OutOfMemory
from memlab.predict.trace.apply_events import apply
from memlab.predict.trace.events import Alloc, Event, Free
from memlab.predict.trace.trace_format import Site, Trace


@dataclass(frozen=True)
class Holding:
    """Memory that one site holds. ``nbytes``: requested, in ``count`` blocks."""

    site: Site
    nbytes: int
    count: int


@dataclass(frozen=True)
class Slack:
    """Bytes that the allocator has reserved and no request asked for.

    ``rounding``: of blocks in use, beyond what was asked for. ``waiting``: freed, but a side stream may still use
    them. ``holes``: free blocks that cannot go back to the device, because blocks in use share their segments.
    ``releasable``: free memory that ``empty_cache`` gives back.
    """

    rounding: int
    waiting: int
    holes: int
    releasable: int

    @property
    def total(self) -> int:
        return self.rounding + self.waiting + self.holes + self.releasable


@dataclass(frozen=True)
class Moment:
    """Memory after one event, in bytes. ``reserved`` is the sum of all holdings and of the slack."""

    event: int
    allocated: int
    reserved: int
    holdings: tuple[Holding, ...]  # the largest first
    slack: Slack

    @property
    def requested(self) -> int:
        return sum(holding.nbytes for holding in self.holdings)


def moments(trace: Trace, events: Collection[int], allocator: CachingAllocator) -> dict[int, Moment]:
    """Return the moment after each of the ``events`` (indices in ``trace.events``), with a new ``allocator``.

    Of a request without room it is the moment when the allocator gave up. Later moments are left out.
    """
    found: dict[int, Moment] = {}
    alive: _Alive = {}
    for index, event in enumerate(trace.events):
        has_room = _has_room(event, allocator)
        if has_room:
            _note(event, alive)
        if index in events:
            found[index] = _moment(trace, index, alive, allocator)
        if not has_room:
            break
    return found


def holdings_at(trace: Trace, events: Collection[int]) -> dict[int, tuple[Holding, ...]]:
    """Return who holds memory after each of the ``events``, the largest first."""
    found: dict[int, tuple[Holding, ...]] = {}
    alive: _Alive = {}
    for index, event in enumerate(trace.events):
        _note(event, alive)
        if index in events:
            found[index] = _holdings(trace, alive)
    return found


_Alive = dict[int, tuple[int, int]]  # key of a block -> bytes requested, number of the site


def _has_room(event: Event, allocator: CachingAllocator) -> bool:
    """Apply an event. Return False for a request that finds no room."""
    try:
        apply(event, allocator)
    except OutOfMemory:
        return False
    return True


def _note(event: Event, alive: _Alive) -> None:
    if isinstance(event, Alloc):
        alive[event.key] = (event.nbytes, event.site)
    elif isinstance(event, Free):
        del alive[event.key]


def _moment(trace: Trace, index: int, alive: _Alive, allocator: CachingAllocator) -> Moment:
    holdings = _holdings(trace, alive)
    requested = sum(holding.nbytes for holding in holdings)
    releasable = allocator.releasable_bytes()
    slack = Slack(
        rounding=allocator.allocated - requested,
        waiting=allocator.active - allocator.allocated,
        holes=allocator.reserved - allocator.active - releasable,
        releasable=releasable,
    )
    return Moment(index, allocator.allocated, allocator.reserved, holdings, slack)


def _holdings(trace: Trace, alive: _Alive) -> tuple[Holding, ...]:
    nbytes: Counter[int] = Counter()
    count: Counter[int] = Counter()
    for size, number in alive.values():
        nbytes[number] += size
        count[number] += 1
    return tuple(Holding(trace.sites[number], total, count[number]) for number, total in nbytes.most_common())


def by_kind(holdings: Iterable[Holding]) -> dict[str, int]:
    """Return the bytes of each kind, the largest first."""
    kinds: Counter[str] = Counter()
    for holding in holdings:
        kinds[holding.site.kind] += holding.nbytes
    return dict(kinds.most_common())
