"""Data of one rank's history: parts of the run, sites, and the intervals of blocks and segments, packed."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from memlab.analyse.explain.accounting import Share, line_of, module_of
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.phases import parts_of
from memlab.analyse.explain.placements import Block, Segment, event_times, placements
from memlab.core.record import Record
from memlab.predict.memory.host import host_changes
from memlab.predict.trace.trace_format import Site, Trace
from memlab.report.explain_page.packing import packed, steps


def history(rank: Explained, record: Record, run: int) -> dict[str, Any]:
    """Return the history of one rank of a record, the run with this number. Sizes are in bytes, times in
    microseconds."""
    trace = rank.history.trace
    found = placements(trace, rank.history.recorder())
    strings: dict[str, int] = {}
    return {
        "run": run,
        "rank": rank.rank,
        "source": rank.source,
        "events": found.events,
        "peak": rank.peak.event,
        "failed": _failed(rank, found.events),
        "parts": [[part.phase, part.step, part.begin, part.end] for part in parts_of(trace, found.events)],
        "sites": [[strings.setdefault(text, len(strings)) for text in _site(site)] for site in trace.sites],
        "strings": list(strings),
        "blocks": _blocks(found.blocks),
        "segments": _segments(found.segments),
        "clock": _clock(event_times(rank, record), found.events),
        "outside": _outside(rank, found.events),
        "host": _host(trace),
    }


def _failed(rank: Explained, events: int) -> int | None:
    """Return the last event before the request with which memory ran out; ``None`` where the history ends before it."""
    if rank.oom is None or rank.oom.last_parts is not None:
        return None
    return min(rank.oom.moment.event, events - 1)


def _site(site: Site) -> tuple[str, ...]:
    """Return the texts of a site, in the order of SITE in history.js."""
    shape = " x ".join(map(str, site.shape))
    return site.kind, site.module, module_of(site), line_of(site), site.user_line, site.function, shape


def _blocks(blocks: Sequence[Block]) -> dict[str, Any]:
    columns = {
        "site": [block.site for block in blocks],
        "nbytes": [block.nbytes for block in blocks],
        "size": [block.size for block in blocks],
        "address": [block.address for block in blocks],
        "begin": steps([block.begin for block in blocks]),
        "events_held": [block.freed - block.begin for block in blocks],
        "events_waiting": [block.reusable - block.freed for block in blocks],
    }
    return {name: packed(values) for name, values in columns.items()}


def _segments(segments: Sequence[Segment]) -> dict[str, Any]:
    columns = {
        "address": [segment.address for segment in segments],
        "size": [segment.size for segment in segments],
        "base": [segment.base for segment in segments],
        "page": [segment.page for segment in segments],
        "begin": steps([segment.begin for segment in segments]),
        "events_held": [segment.end - segment.begin for segment in segments],
    }
    return {name: packed(values) for name, values in columns.items()}


def _outside(rank: Explained, events: int) -> list[dict[str, Any]]:
    """Return what lies outside the allocator, and the driver's figure, at the events from which they can differ."""
    return [
        {
            "event": event,
            "shares": list(map(_share, rank.device.outside(event))),
            "driver": rank.device.driver(event),
        }
        for event in rank.device.changes
        if event < events
    ]


def _share(share: Share) -> dict[str, Any]:
    return {"name": share.name, "bytes": share.nbytes, "parts": list(map(_share, share.parts))}


def _clock(times: Mapping[int, float], events: int) -> dict[str, Any] | None:
    """Return the microseconds at the events from ``begin`` on. ``times``: event -> seconds, of neighbours."""
    known = [event for event in times if event < events]
    if not known:
        return None
    microseconds = list(accumulate((round(1e6 * times[event]) for event in known), max))
    return {"begin": known[0], "times": packed(steps(microseconds))}


def _host(trace: Trace) -> dict[str, Any] | None:
    """Return the memory of the tensors on the host, which only a prediction knows."""
    changes = list(host_changes(trace))
    if not changes:
        return None
    events, pageable, pinned = zip(*changes, strict=True)
    return {"event": packed(steps(events)), "pageable": packed(pageable), "pinned": packed(pinned)}
