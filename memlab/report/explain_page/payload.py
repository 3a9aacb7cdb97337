"""Data of the page: the answer in words, the histories of ranks, and the figures of all ranks by phase.

A history has the parts of the run, sites, and the intervals of blocks and segments. Long columns of whole numbers are
packed: byte planes, compressed, as text. The page unpacks them (history.js).
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from memlab import __version__
from memlab.analyse.diff import ChangedKey
from memlab.analyse.explain.accounting import Share, line_of, module_of
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.explained_run import ExplainedRun
from memlab.analyse.explain.findings import findings
from memlab.analyse.explain.out_of_memory import OutOfMemoryExplained
from memlab.analyse.explain.phases import parts_of
from memlab.analyse.explain.placements import PlacedBlock, PlacedSegment, Placements, event_times
from memlab.analyse.explain.remedies import Remedies
from memlab.core.record import Record, phases_of
from memlab.prediction.memory.host import host_changes
from memlab.report import explain_text
from memlab.report.findings_text import sentence
from memlab.report.kind_colors import kind_colors
from memlab.report.remedies_text import remedies_text
from memlab.simulator.trace.events import Alloc
from memlab.simulator.trace.trace_format import Site, Trace

DEPTH = 4
"""Levels of the tree of what was held when memory ran out: kinds of memory, and their modules."""

BY_PHASE = ("peak_allocated_bytes", "peak_reserved_bytes", "end_allocated_bytes", "used_bytes", "host_peak_bytes")
"""Figures of a rank's phase that the page shows."""

OF_RANK = ("device_used_bytes", "process_used_bytes", "host_peak_bytes", "host_rss_bytes", "host_pinned_bytes")
"""Figures of a rank over the whole run."""


def payload(
    runs: Sequence[ExplainedRun], remedies: Remedies | None = None, changes: Sequence[ChangedKey] = ()
) -> dict[str, Any]:
    """Build the data of a page about one run, or about two that are compared. Sizes are in bytes.

    The rank of each run that is shown must have a history. ``remedies``: of the one run, if they were predicted.
    ``changes``: settings and versions in which two runs differ.
    """
    names = _names([run.folder.path for run in runs])
    drawn = [(rank, number) for number, run in enumerate(runs) for rank in run.ranks if rank.has_history]
    traces = [rank.history.trace for rank, _ in drawn]
    kinds = {trace.sites[event.site].kind for trace in traces for event in trace.events if isinstance(event, Alloc)}
    return {
        "title": " and ".join(names),
        "version": __version__,
        "difference": [explain_text.difference(*(run.shown for run in runs)), explain_text.settings(changes)]
        if len(runs) > 1
        else [],
        "remedies": remedies and asdict(remedies_text(remedies)),
        "runs": [_run(*each) for each in zip(names, runs, strict=True)],
        "histories": [history(rank, runs[number].record, number) for rank, number in drawn],
        "shown": [drawn.index((run.shown, number)) for number, run in enumerate(runs)],
        "kinds": [{"name": kind, "color": color, "dark": dark} for kind, (color, dark) in kind_colors(kinds).items()],
    }


def _names(paths: Sequence[Path]) -> list[str]:
    """Name run folders; those of one name with the folder that they are in."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [f"{path.parent.name}/{path.name}" for path in paths]


def _run(name: str, run: ExplainedRun) -> dict[str, Any]:
    record = run.record
    return {
        "name": name,
        "source": record.source,
        "answer": _answer(run),
        "problems": run.problems,
        "phases": phases_of(record.ranks),
        "ranks": [_rank(result) for result in record.ranks],
    }


def _answer(run: ExplainedRun) -> dict[str, Any]:
    """Return what the terminal prints about the rank that is shown, in the same words."""
    rank = run.shown
    more = explain_text.uses_more(run)
    return {
        "failure": rank.oom and _failure(rank, rank.oom),
        "sentences": [*explain_text.peak_sentences(rank), *explain_text.notes(rank), *([more] if more else [])],
        "findings": list(map(sentence, findings(rank))),
        "phases": asdict(explain_text.phases_table(rank)),
    }


def _failure(rank: Explained, oom: OutOfMemoryExplained) -> dict[str, Any]:
    """Return what the terminal prints about a failed request. ``held``: where the history ends before that request."""
    return {
        "sentences": explain_text.failure_sentences(rank, oom),
        "before": asdict(explain_text.what_came_before(oom)),
        "held": None if oom.last_parts is None else asdict(explain_text.accounting_table(rank, DEPTH)),
    }


def _rank(result: Mapping[str, Any]) -> dict[str, Any]:
    of_meters = (result["attached"] or {}).get("phases", {})  # those of a command know more than torch
    phases = {}
    for phase, figures in result["phases"].items():
        known = {**figures, **of_meters.get(phase, {})}
        phases[phase] = {key: known.get(key) for key in BY_PHASE}
    facts = {key: result[key] for key in ("rank", "status", "same_as_rank", "device_total_bytes", *OF_RANK)}
    return {**facts, "phases": phases}


def history(rank: Explained, record: Record, run: int) -> dict[str, Any]:
    """Return the history of one rank of a record, the run with this number. Sizes are in bytes, times in
    microseconds."""
    trace = rank.history.trace
    found = Placements(trace, rank.history.recorder())
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
        "blocks": _packed(
            found.blocks,
            ("site", "nbytes", "size", "address"),
            events_held=[block.freed - block.begin for block in found.blocks],
            events_waiting=[block.reusable - block.freed for block in found.blocks],
        ),
        "segments": _packed(
            found.segments,
            ("address", "size", "base", "page"),
            events_held=[segment.end - segment.begin for segment in found.segments],
        ),
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


def _packed(
    intervals: Sequence[PlacedBlock | PlacedSegment], names: Sequence[str], **lengths: list[int]
) -> dict[str, dict[str, Any]]:
    """Return the columns of intervals: these attributes, ``begin``, and ``lengths``, numbers of events."""
    columns = {name: [getattr(each, name) for each in intervals] for name in names}
    columns |= {"begin": steps([each.begin for each in intervals]), **lengths}
    return {name: packed(values) for name, values in columns.items()}


def _outside(rank: Explained, events: int) -> list[dict[str, Any]]:
    """Return what lies outside the allocator, and the driver's figure, at the events from which they can differ."""
    return [
        {"event": event, "shares": list(map(_share, rank.device.outside(event))), "driver": rank.device.driver(event)}
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


MOST_BYTES = 7
"""Bytes of the largest value: JavaScript's numbers hold whole numbers below 2**53."""


def packed(values: Sequence[int]) -> dict[str, Any]:
    """Pack whole numbers from 0 to 2**53 - 1.

    ``planes``: how many bytes each value has; ``data``: base64 of a zlib stream with the lowest byte of each value,
    then the next byte of each, and so on. Neighbours in a plane are similar, so they compress well.
    """
    width = max(1, -(-max(values, default=0).bit_length() // 8))
    assert width <= MOST_BYTES
    rows = b"".join(value.to_bytes(width, "little") for value in values)
    planes = b"".join(rows[place::width] for place in range(width))
    return {"planes": width, "data": base64.b64encode(zlib.compress(planes, 6)).decode()}


def steps(values: Sequence[int]) -> list[int]:
    """Return the first value and the increases from each value to the next, of values that never decrease."""
    return [*values[:1], *(after - before for before, after in pairwise(values))]
