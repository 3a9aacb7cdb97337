"""Figure of memory over time inside one step, for records that have this curve."""

from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.identity import point_of, tokens_of
from memlab.analyse.run_view import RunView
from memlab.core.errors import RecordError
from memlab.report.figures.canvas import OOM_COLOR, counted, finish, from_zero, gib, new_figure, plain
from memlab.report.figures.sheet import NothingToDraw, Sheet
from memlab.runs.folder import RunFolder

MOST = 4
"""Most panels of a figure."""


def step_memory(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw the largest point with a curve of each configuration, one panel below the other."""
    curves = {label: found for label, members in sheet.configurations.items() if (found := _largest(members))}
    if not curves:
        raise NothingToDraw("no record keeps its memory over a step (predictions do)")
    shown = list(curves.items())[:MOST]
    figure, panels = new_figure(len(shown), 1, 0.6 + 2.1 * len(shown), sharey=True)
    for axes, (label, (run, curve)) in zip(panels.flat, shown, strict=True):
        _draw(axes, curve, sheet.styles[label].color)
        micro, tokens = point_of(run)
        words = [sheet.short(label), f"batch {micro:,}", f"{tokens:,} tokens"]
        axes.set_title(plain(", ".join(filter(None, words))), pad=16)
        axes.set_ylabel("GiB")
    counted(panels.flat[-1], "allocations and frees since the step began")
    from_zero(panels.flat)
    notes = [f"{MOST} of {len(curves)} configurations"] if len(curves) > MOST else []
    yield "", finish(figure, sheet, "Memory inside one step", notes)


def _largest(members: list[RunView]) -> tuple[RunView, Mapping[str, Any]] | None:
    for run in sorted((run for run in members if run.fits_and_lasts), key=tokens_of, reverse=True):
        curve = _curve(run)
        if curve:
            return run, curve
    return None


def _curve(run: RunView) -> Mapping[str, Any] | None:
    """Return the curve of the rank with the highest peak that has a valid curve; ``None`` without one."""
    try:
        ranks = RunFolder(run.path).read_record().ranks
    except RecordError:
        return None
    for rank in sorted(ranks, key=lambda rank: rank.get("peak_reserved_bytes") or 0, reverse=True):
        curve = rank.get("curve")
        lines = (
            [curve.get(key) for key in ("event", "allocated_bytes", "reserved_bytes")]
            if isinstance(curve, dict)
            else []
        )
        if lines and all(isinstance(line, list) and line and len(line) == len(lines[0]) for line in lines):
            return curve
    return None


def _draw(axes: Any, curve: Mapping[str, Any], color: str) -> None:
    events = curve["event"]
    axes.fill_between(events, gib(curve["allocated_bytes"]), step="post", color=color, alpha=0.45, label="allocated")
    axes.step(events, gib(curve["reserved_bytes"]), where="post", color=OOM_COLOR, linewidth=1.2, label="reserved")
    axes.set_xlim(events[0], events[-1])
    for position, name in curve.get("phases") or []:
        axes.axvline(position, color="#999999", linewidth=0.7)
        where = axes.get_xaxis_transform()
        axes.text(position, 1.02, plain(str(name).replace("_", " ")), fontsize=7.5, transform=where, clip_on=False)
