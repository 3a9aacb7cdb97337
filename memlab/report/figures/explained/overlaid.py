"""Figure of two runs: allocated and reserved memory of each over one step, phase by phase on one axis."""

from bisect import bisect_right
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.explain.phases import Part
from memlab.report import units
from memlab.report.figures.canvas import counted, finish, from_zero, gib, new_figure, plain
from memlab.report.figures.explained.drawn_run import DrawnRun
from memlab.report.figures.explained.over_step import BUCKETS, mark_phases
from memlab.report.figures.sheet import NothingToDraw
from memlab.report.palette import OKABE_ITO

COLORS = (OKABE_ITO[0][0], OKABE_ITO[1][0])


def overlaid(first: DrawnRun, second: DrawnRun) -> Figure:
    """Draw the step of the peak of both runs. The n-th phase of both begins at the same place, and is as wide as the
    share of the first run's events; within a phase, events are equally far apart.

    Raises :class:`NothingToDraw` if the phases of the two steps differ.
    """
    steps = [_step(run) for run in (first, second)]
    names = [[part.phase for part in parts] for parts in steps]
    if names[0] != names[1]:
        raise NothingToDraw(f"the phases of the two steps differ: {', '.join(names[0])}; and {', '.join(names[1])}")
    figure, panels = new_figure(2, 1, 4.6, sharex=True)
    edges = [part.begin - steps[0][0].begin for part in steps[0]] + [steps[0][-1].end - steps[0][0].begin]
    for run, parts, color, dash in zip((first, second), steps, COLORS, ("solid", "dashed"), strict=True):
        _draw(panels, run, parts, edges, color, dash, _name(run, first, second))
    for axes, title in zip(panels.flat, ("allocated", "reserved"), strict=True):
        axes.set_xlim(0, edges[-1])
        axes.set_ylabel(f"{title}, GiB")
    mark_phases(panels[0][0], list(zip(edges[:-1], edges[1:], names[0], strict=True)))
    mark_phases(panels[1][0], [(begin, begin, "") for begin in edges[:-1]])
    from_zero(panels.flat)
    counted(panels[-1][0], f"events of the step, as many as in the {_name(first, first, second)} run")
    return finish(figure, first.sheet, "Memory over a step of two runs", [_peaks(first, second)])


def _step(run: DrawnRun) -> list[Part]:
    """Return the phases of the step that holds the peak; what lies between two belongs to the one before."""
    begin, end = run.timeline.peak_step
    phases = [part for part in run.timeline.parts if part.phase and begin <= part.begin < end]
    ends = [*(part.begin for part in phases[1:]), end]
    return [part._replace(end=end) for part, end in zip(phases, ends, strict=True)]


def _draw(panels: Any, run: DrawnRun, parts: list[Part], edges: list[int], color: str, dash: str, name: str) -> None:
    line = run.timeline
    events = line.sampled(parts[0].begin, parts[-1].end, 2 * BUCKETS)
    at = [_place(event, parts, edges) for event in events]
    for axes, values in zip(panels.flat, (line.allocated, line.reserved), strict=True):
        sizes = gib([values[event] for event in events])
        axes.step(at, sizes, where="post", color=color, linestyle=dash, linewidth=1.1, label=plain(name))


def _place(event: int, parts: list[Part], edges: list[int]) -> float:
    """Return the place of an event on the axis of the first run's events."""
    number = bisect_right([part.begin for part in parts], event) - 1
    part = parts[number]
    return edges[number] + (event - part.begin) / (part.end - part.begin) * (edges[number + 1] - edges[number])


def _name(run: DrawnRun, first: DrawnRun, second: DrawnRun) -> str:
    return run.view.source if first.view.source != second.view.source else run.view.run_id


def _peaks(first: DrawnRun, second: DrawnRun) -> str:
    one, other = (run.timeline.allocated[run.timeline.peak] for run in (first, second))
    names = (_name(run, first, second) for run in (first, second))
    sizes = (units.about(size) for size in (one, other))
    told = ", ".join(f"{name} {size} GiB" for name, size in zip(names, sizes, strict=True))
    return f"peaks of allocated memory: {told} ({units.signed_percent(other / one - 1)})"
