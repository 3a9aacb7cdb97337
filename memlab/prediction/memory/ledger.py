"""Ledger of a rank: who holds the memory at chosen moments of its trace, down to the line of code; and the slack.

The breakdown in a record names its kinds at each peak, the code that made the largest allocations, and the curve over
one step.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memlab.prediction.memory.replay import Replay
from memlab.simulator.allocator import CachingAllocator, OutOfMemory
from memlab.simulator.trace.events import Alloc, Event, Free
from memlab.simulator.trace.trace_format import Site, Trace, apply


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
    return {event: _moment(trace, event, alive, allocator) for event, alive in _alive_at(trace, events, allocator)}


def holdings_at(trace: Trace, events: Collection[int]) -> dict[int, tuple[Holding, ...]]:
    """Return who holds memory after each of the ``events``, the largest first."""
    return {event: _holdings(trace, alive) for event, alive in _alive_at(trace, events)}


_Alive = dict[int, tuple[int, int]]  # key of a block -> bytes requested, number of the site


def _alive_at(
    trace: Trace, events: Collection[int], allocator: CachingAllocator | None = None
) -> Iterator[tuple[int, _Alive]]:
    """Yield each of the ``events`` and the blocks that are alive after it. ``allocator`` replays the trace so far; a
    request for which it has no room is the last event."""
    alive: _Alive = {}
    for index, event in enumerate(trace.events):
        has_room = allocator is None or _has_room(event, allocator)
        if isinstance(event, Alloc) and has_room:
            alive[event.key] = (event.nbytes, event.site)
        elif isinstance(event, Free):
            del alive[event.key]
        if index in events:
            yield index, alive
        if not has_room:
            break


def _has_room(event: Event, allocator: CachingAllocator) -> bool:
    """Apply an event. Return False for a request that finds no room."""
    try:
        apply(event, allocator)
    except OutOfMemory:
        return False
    return True


def _moment(trace: Trace, index: int, alive: _Alive, allocator: CachingAllocator) -> Moment:
    holdings = _holdings(trace, alive)
    releasable = allocator.releasable_bytes()
    slack = Slack(
        rounding=allocator.allocated - sum(holding.nbytes for holding in holdings),
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


CURVE_POINTS = 500
LARGEST = 12
SLACK = "allocator slack"
"""Kind of the memory that the allocator holds beyond the requested bytes: rounding, unused rests of blocks, and free
blocks."""


def breakdown(trace: Trace, result: Replay) -> dict[str, Any]:
    """Return the bytes by kind at each phase's allocated peak. The kinds of a phase add up to its reserved peak.

    ``largest``: the lines of code that allocated most of the memory alive at the run's allocated peak.
    """
    at_peaks = {name: index for name, index in result.peak_events.items() if name in result.phases}  # else between two
    held = holdings_at(trace, {*at_peaks.values(), result.peak_event})
    in_order = sorted(at_peaks, key=at_peaks.__getitem__)
    return {
        "phases": {name: _by_kind(held[at_peaks[name]], result.phases[name].peak_reserved_bytes) for name in in_order},
        "peak_phase": result.peak_phase,
        "largest": [_line(holding) for holding in held.get(result.peak_event, ())[:LARGEST]],
    }


def _by_kind(holdings: Sequence[Holding], reserved: int) -> dict[str, int]:
    kinds = Counter(by_kind(holdings))
    kinds[SLACK] = reserved - kinds.total()
    return dict(kinds.most_common())


def _line(holding: Holding) -> dict[str, Any]:
    site = holding.site
    return {
        "bytes": holding.nbytes,
        "count": holding.count,
        "kind": site.kind,
        "op": site.op,
        "where": site.where,
        **({"user_line": site.user_line} if site.user_line else {}),
        "module": site.module,
        "shape": list(site.shape),
    }


def curve(result: Replay) -> dict[str, list]:
    """Return memory over one step in at most ``CURVE_POINTS`` points. Each point is the highest value of its interval.

    The x-axis counts allocator events. ``phases``: the event at which each phase begins, and its name.
    """
    width = max(1, -(-len(result.curve) // CURVE_POINTS))
    rows = [result.curve[start : start + width] for start in range(0, len(result.curve), width)]
    first = result.curve[0][0] if result.curve else 0
    return {
        "event": [row[0][0] - first for row in rows],
        "allocated_bytes": [max(allocated for _, allocated, _ in row) for row in rows],
        "reserved_bytes": [max(reserved for _, _, reserved in row) for row in rows],
        "phases": [[index - first, name] for index, name in result.curve_phases],
    }
