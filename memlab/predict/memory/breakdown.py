"""Breakdown of memory: its kinds at each peak, the code that made the largest allocations, its curve over one step."""

from collections import Counter
from typing import Any

from memlab.predict.memory.replay import Replay
from memlab.predict.trace.events import Alloc, Free
from memlab.predict.trace.trace_format import Trace

CURVE_POINTS = 500
LARGEST = 12
SLACK = "allocator slack"
"""Kind of the memory that the allocator holds beyond the requested bytes: rounding, unused rests of blocks, and free
blocks."""


def breakdown(trace: Trace, result: Replay) -> dict[str, Any]:
    """Return the bytes by kind at each phase's allocated peak. The kinds of a phase add up to its reserved peak.

    ``largest``: the lines of code that allocated most of the memory alive at the run's allocated peak.
    """
    moments: dict[int, list[str]] = {}
    for name, index in result.peak_events.items():
        if name in result.phases:  # not between two phases
            moments.setdefault(index, []).append(name)
    alive: dict[int, tuple[int, int]] = {}
    phases: dict[str, dict[str, int]] = {}
    largest: list[dict[str, Any]] = []
    for index, event in enumerate(trace.events):
        if isinstance(event, Alloc):
            alive[event.key] = (event.nbytes, event.site)
        elif isinstance(event, Free):
            del alive[event.key]
        for name in moments.get(index, ()):
            phases[name] = _by_kind(trace, alive, result.phases[name].peak_reserved_bytes)
        if index == result.peak_event:
            largest = _largest(trace, alive)
    return {"phases": phases, "peak_phase": result.peak_phase, "largest": largest}


def _by_kind(trace: Trace, alive: dict[int, tuple[int, int]], reserved: int) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for nbytes, site in alive.values():
        kinds[trace.sites[site].kind] += nbytes
    kinds[SLACK] = reserved - kinds.total()
    return dict(kinds.most_common())


def _largest(trace: Trace, alive: dict[int, tuple[int, int]]) -> list[dict[str, Any]]:
    nbytes: Counter[int] = Counter()
    count: Counter[int] = Counter()
    for size, number in alive.values():
        nbytes[number] += size
        count[number] += 1
    lines = []
    for number, total in nbytes.most_common(LARGEST):
        site = trace.sites[number]
        facts = {
            "kind": site.kind,
            "op": site.op,
            "where": site.where,
            "module": site.module,
            "shape": list(site.shape),
        }
        lines.append({"bytes": total, "count": count[number], **facts})
    return lines


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
