"""Data of the page: the answer in words, the histories of ranks, and the figures of all ranks by phase."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memlab import __version__
from memlab.analyse.diff import ChangedKey
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.explained_run import ExplainedRun
from memlab.analyse.explain.findings import findings
from memlab.analyse.explain.out_of_memory import OutOfMemory
from memlab.analyse.explain.remedies import Remedies
from memlab.core.record import COMMAND_PHASES, Record
from memlab.predict.trace.events import Alloc
from memlab.report.explain_page.histories import history
from memlab.report.explain_text import (
    accounting_table,
    answer,
    difference,
    elsewhere,
    phases_table,
    provenance,
    settings,
    uses_more,
    when_reserved_is_highest,
    why_the_peak_is_there,
)
from memlab.report.findings_text import sentence
from memlab.report.kind_colors import kind_colors
from memlab.report.out_of_memory_text import held_sentence, out_of_memory_sentence, what_came_before
from memlab.report.remedies_text import remedies_text

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
        "difference": _difference(runs, changes) if len(runs) > 1 else [],
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


def _difference(runs: Sequence[ExplainedRun], changes: Sequence[ChangedKey]) -> list[str]:
    before, after = (run.shown for run in runs)
    return [difference(before, after), settings(changes)]


def _run(name: str, run: ExplainedRun) -> dict[str, Any]:
    record = run.record
    return {
        "name": name,
        "source": record.source,
        "answer": _answer(run),
        "problems": run.problems,
        "phases": _phases(record),
        "ranks": [_rank(result) for result in record.ranks],
    }


def _answer(run: ExplainedRun) -> dict[str, Any]:
    """Return what the terminal prints about the rank that is shown, in the same words."""
    rank = run.shown
    sentences = (
        answer(rank),
        when_reserved_is_highest(rank),
        why_the_peak_is_there(rank),
        provenance(rank),
        elsewhere(rank),
        uses_more(run),
    )
    return {
        "failure": rank.oom and _failure(rank, rank.oom),
        "sentences": list(filter(None, sentences)),
        "findings": list(map(sentence, findings(rank))),
        "phases": asdict(phases_table(rank)),
    }


def _failure(rank: Explained, oom: OutOfMemory) -> dict[str, Any]:
    """Return what the terminal prints about a failed request. ``held``: where the history ends before that request."""
    is_in_history = oom.last_parts is None
    return {
        "sentences": [out_of_memory_sentence(rank, oom), *([] if is_in_history else [held_sentence(oom)])],
        "before": asdict(what_came_before(oom)),
        "held": None if is_in_history else asdict(accounting_table(rank, DEPTH)),
    }


def _phases(record: Record) -> list[str]:
    """List the phases of all ranks, in the order of display."""
    found = dict.fromkeys(phase for result in record.ranks for phase in _figures_by_phase(result))
    return sorted(found, key=lambda phase: COMMAND_PHASES.index(phase) if phase in COMMAND_PHASES else len(found))


def _rank(result: Mapping[str, Any]) -> dict[str, Any]:
    phases = {
        phase: {key: figures.get(key) for key in BY_PHASE} for phase, figures in _figures_by_phase(result).items()
    }
    facts = {key: result[key] for key in ("rank", "status", "same_as_rank", "device_total_bytes", *OF_RANK)}
    return {**facts, "phases": phases}


def _figures_by_phase(result: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the figures of each phase. A command's meters know more of them than torch."""
    attached = result["attached"] or {}
    return {
        phase: {**figures, **attached.get("phases", {}).get(phase, {})} for phase, figures in result["phases"].items()
    }
