"""Figure of one step: what holds the memory after each event, by kind, up to reserved memory; host memory below it."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.explain.phases import Part
from memlab.analyse.explain.placements import ROUNDING, by_kind
from memlab.predict.memory.host import host_changes
from memlab.predict.trace.trace_format import Trace
from memlab.report import units
from memlab.report.figures.canvas import counted, finish, gib, new_figure, plain
from memlab.report.figures.explained.drawn_run import DrawnRun
from memlab.report.figures.explained.stack import RESERVED, layers
from memlab.report.palette import OKABE_ITO

BUCKETS = 120
"""Parts of a step; of each, the extremes are drawn."""

NARROW, SHORT = 0.03, 0.12
"""Shares of the axis: a phase narrower than NARROW has no name; that of a last one narrower than SHORT ends with it."""

PAGEABLE, PINNED = OKABE_ITO[2][0], OKABE_ITO[1][0]


def over_step(run: DrawnRun) -> Figure:
    """Draw the step that holds the peak; the x axis is time if a clock is known, else the number of the event."""
    begin, end = run.timeline.peak_step
    host = _host(run.rank.history.trace, begin, end)
    heights = [3, 1] if host else [1]
    figure, panels = new_figure(
        len(heights), 1, 4.2 if host else 3.6, sharex=True, gridspec_kw={"height_ratios": heights}
    )
    _draw_device(panels[0][0], run, begin, end)
    if host:
        _draw_host(panels[1][0], run, host, begin, end)
    counted(panels[-1][0], _axis_name(run))
    step = f"step {run.rank.at.step}" if run.rank.at.step else "the step of the peak"
    return finish(figure, run.sheet, f"What holds the memory in {step}", [run.note])


def mark_phases(axes: Any, names: Sequence[tuple[float, float, str]]) -> None:
    """Draw a line where each phase begins, and its name above it where there is room. ``names``: begin, end, name."""
    low, high = axes.get_xlim()
    where = axes.get_xaxis_transform()
    for begin, end, name in names:
        axes.axvline(begin, color="#999999", linewidth=0.7)
        if end - begin >= NARROW * (high - low):
            is_at_the_end = high - begin < SHORT * (high - low)
            place, side = (high, "right") if is_at_the_end else (begin, "left")
            text = plain(name.replace("_", " "))
            axes.text(place, 1.02, text, ha=side, fontsize=7.5, transform=where, clip_on=False)


def _draw_device(axes: Any, run: DrawnRun, begin: int, end: int) -> None:
    line = run.timeline
    events = sorted({*line.sampled(begin, end, BUCKETS), line.peak})
    at = [_position(run, event) for event in events]
    kinds = by_kind(run.rank.history.trace, events, line.allocated)
    del kinds[ROUNDING]  # part of the slack
    base = [0.0] * len(events)
    for layer in layers(kinds, [line.reserved[event] for event in events]):
        top = [low + size for low, size in zip(base, gib(layer.sizes), strict=True)]
        look = {"facecolor": layer.color, "hatch": layer.hatch, "edgecolor": "#AAAAAA", "linewidth": 0.0}
        axes.fill_between(at, base, top, step="post", label=layer.name, **look)
        base = top
    reserved, allocated = (gib([values[event] for event in events]) for values in (line.reserved, line.allocated))
    axes.step(at, reserved, where="post", color=RESERVED, linewidth=1.3, label="reserved")
    axes.step(at, allocated, where="post", color="black", linewidth=0.7, label="allocated")
    axes.set_xlim(at[0], at[-1])
    axes.set_ylim(0, 1.15 * max(reserved))
    axes.set_ylabel("GiB")
    peak = line.allocated[line.peak]
    axes.plot(_position(run, line.peak), peak / 2**30, marker="v", color="black", markersize=6, linestyle="none")
    _name_peak(axes, _position(run, line.peak), peak)
    mark_phases(axes, [_span(run, part) for part in line.parts if part.phase and begin <= part.begin < end])


def _name_peak(axes: Any, position: float, peak: int) -> None:
    low, high = axes.get_xlim()
    is_right = position > (low + high) / 2
    axes.annotate(
        f"peak {units.about(peak)} GiB",
        (position, peak / 2**30),
        xytext=(-8 if is_right else 8, 9),
        textcoords="offset points",
        ha="right" if is_right else "left",
        fontsize=8,
        bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )


def _draw_host(axes: Any, run: DrawnRun, host: Sequence[tuple[int, int, int]], begin: int, end: int) -> None:
    at = [_position(run, event) for event, _, _ in host]
    pinned, both = gib([each[2] for each in host]), gib([each[1] + each[2] for each in host])
    axes.fill_between(at, pinned, step="post", color=PINNED, alpha=0.7, label="host tensors, page-locked")
    axes.fill_between(at, pinned, both, step="post", color=PAGEABLE, alpha=0.5, label="host tensors, pageable")
    axes.set_ylim(0, 1.15 * max(both))
    axes.set_ylabel("host, GiB")


def _host(trace: Trace, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return event, pageable and page-locked bytes of host tensors, from ``begin`` to before ``end``; empty if the
    trace has none there."""
    before, found = (0, 0), []
    for event, pageable, pinned in host_changes(trace):
        if event < begin:
            before = pageable, pinned
        elif event < end:
            found.append((event, pageable, pinned))
    found = [(begin, *before), *found]
    last = found[-1]
    return [*found, (end - 1, *last[1:])] if any(pageable or pinned for _, pageable, pinned in found) else []


def _position(run: DrawnRun, event: int) -> float:
    """Return the place of an event on the x axis: milliseconds, or events, since the step began."""
    begin, _ = run.timeline.peak_step
    seconds = run.timeline.seconds
    return event - begin if seconds is None else 1e3 * (seconds[event] - seconds[begin])


def _span(run: DrawnRun, part: Part) -> tuple[float, float, str]:
    return _position(run, part.begin), _position(run, part.end - 1), part.phase


def _axis_name(run: DrawnRun) -> str:
    if run.timeline.seconds is None:
        return "allocations, frees and other events since the step began"
    return "ms of the host since the step began, with the memory history recorded"
