"""Breakdown of memory: its kinds at each peak, the code that made the largest allocations, its curve over one step."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from memlab.predict.memory.ledger import Holding, by_kind, holdings_at
from memlab.predict.memory.replay import Replay
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
