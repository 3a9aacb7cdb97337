"""Figures of the memory of single runs, from their histories: over a step, by phase, by rank, and of two runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.explained_run import explain
from memlab.analyse.explain.placements import ROUNDING, MemoryTimeline, by_kind, timeline
from memlab.analyse.run_view import RunView
from memlab.core.errors import RecordError
from memlab.core.record import Record, phases_of
from memlab.core.sizes import GIB
from memlab.prediction.memory.host import host_changes
from memlab.prediction.memory.ledger import by_kind as held_by_kind
from memlab.report import units
from memlab.report.figures import canvas
from memlab.report.figures.canvas import NothingToDraw, Sheet, gib
from memlab.report.kind_colors import kind_colors
from memlab.report.palette import OKABE_ITO
from memlab.runs.folder import RunFolder
from memlab.simulator.trace.trace_format import Trace

SMALLER = "smaller kinds"
SLACK = "slack of the allocator"

RESERVED = "#7A2F8F"
"""Colour of the line of reserved memory, as on the page."""


class StackLayer(NamedTuple):
    """Layer of a stack, with its size in bytes at each position."""

    name: str
    color: str
    hatch: str
    sizes: list[int]


def layers(
    kinds: Mapping[str, Sequence[int]], reserved: Sequence[int], outside: Sequence[int] | None = None
) -> list[StackLayer]:
    """Return the layers from bottom to top. ``kinds``: kind -> requested bytes at each position; slack is what is
    reserved beyond them. ``outside``: a last layer, if it is shown."""
    least = 0.01 * max(reserved, default=0)  # kinds that never reach it are one layer
    large = [kind for kind, sizes in kinds.items() if max(sizes, default=0) >= least]
    found = [StackLayer(kind, color, "", list(kinds[kind])) for kind, (color, _) in kind_colors(large).items()]
    small = [sizes for kind, sizes in kinds.items() if kind not in large]
    if any(map(any, small)):
        found.append(StackLayer(SMALLER, "#8A8A8A", "", [sum(sizes) for sizes in zip(*small, strict=True)]))
    slack = [whole - sum(requested) for whole, *requested in zip(reserved, *kinds.values(), strict=True)]
    found.append(StackLayer(SLACK, "#FFFFFF", "////", slack))
    if outside is not None:
        found.append(StackLayer("outside the allocator", "#D0D0D0", "....", list(outside)))
    return found


# --- a run ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnRun:
    """``sheet``: the run alone, for titles."""

    view: RunView
    record: Record
    rank: Explained

    @property
    def sheet(self) -> Sheet:
        return next(canvas.sheets([self.view]))

    @cached_property
    def timeline(self) -> MemoryTimeline:
        return timeline(self.rank)

    @property
    def note(self) -> str:
        """Say what a figure of this run shows: measured or predicted, and the rank."""
        ranks = len(self.record.ranks)
        return f"{self.view.source}, rank {self.rank.rank}{f' of {ranks}, which holds the most' if ranks > 1 else ''}"


# --- over a step ------------------------------------------------------------------------------------------------------


BUCKETS = 120
"""Parts of a step; of each, the extremes are drawn."""

NARROW, SHORT = 0.03, 0.12
"""Shares of the axis: a phase narrower than NARROW has no name; that of a last one narrower than SHORT ends with it."""

PAGEABLE, PINNED = OKABE_ITO[2][0], OKABE_ITO[1][0]


def over_step(run: DrawnRun) -> Figure:
    """Draw the step that holds the peak; the x axis is time if a clock is known, else the number of the event."""
    begin, end = run.timeline.peak_step
    host = _host_tensors(run.rank.history.trace, begin, end)
    heights = [3, 1] if host else [1]
    figure, panels = canvas.new_figure(
        len(heights), 1, 4.2 if host else 3.6, sharex=True, gridspec_kw={"height_ratios": heights}
    )
    _draw_step(panels[0][0], run, begin, end)
    if host:
        _draw_host_tensors(panels[1][0], run, host, begin, end)
    events = "allocations, frees and other events since the step began"
    times = "ms of the host since the step began, with the memory history recorded"
    canvas.counted(panels[-1][0], events if run.timeline.seconds is None else times)
    step = f"step {run.rank.at.step}" if run.rank.at.step else "the step of the peak"
    return canvas.finish(figure, run.sheet, f"What holds the memory in {step}", [run.note])


def mark_phases(axes: Any, names: Sequence[tuple[float, float, str]]) -> None:
    """Draw a line where each phase begins, and its name above it where there is room. ``names``: begin, end, name."""
    low, high = axes.get_xlim()
    where = axes.get_xaxis_transform()
    for begin, end, name in names:
        axes.axvline(begin, color="#999999", linewidth=0.7)
        if end - begin >= NARROW * (high - low):
            is_at_the_end = high - begin < SHORT * (high - low)
            place, side = (high, "right") if is_at_the_end else (begin, "left")
            text = canvas.plain(name.replace("_", " "))
            axes.text(place, 1.02, text, ha=side, fontsize=7.5, transform=where, clip_on=False)


def _draw_step(axes: Any, run: DrawnRun, begin: int, end: int) -> None:
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
    phases = [part for part in line.parts if part.phase and begin <= part.begin < end]
    mark_phases(axes, [(_position(run, part.begin), _position(run, part.end - 1), part.phase) for part in phases])


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


def _draw_host_tensors(axes: Any, run: DrawnRun, host: Sequence[tuple[int, int, int]], begin: int, end: int) -> None:
    at = [_position(run, event) for event, _, _ in host]
    pinned, both = gib([each[2] for each in host]), gib([each[1] + each[2] for each in host])
    axes.fill_between(at, pinned, step="post", color=PINNED, alpha=0.7, label="host tensors, page-locked")
    axes.fill_between(at, pinned, both, step="post", color=PAGEABLE, alpha=0.5, label="host tensors, pageable")
    axes.set_ylim(0, 1.15 * max(both))
    axes.set_ylabel("host, GiB")


def _host_tensors(trace: Trace, begin: int, end: int) -> list[tuple[int, int, int]]:
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


# --- two runs over a step ---------------------------------------------------------------------------------------------


COLORS = (OKABE_ITO[0][0], OKABE_ITO[1][0])


def overlaid(first: DrawnRun, second: DrawnRun) -> Figure:
    """Draw the step of the peak of both runs. The n-th phase of both begins at the same place, and is as wide as the
    share of the first run's events; within a phase, events are equally far apart.

    Raises :class:`NothingToDraw` if the phases of the two steps differ, or if one has none.
    """
    runs = (first, second)
    names, edges = zip(*map(_phases_of_step, runs), strict=True)
    if not all(names):
        raise NothingToDraw("a step that holds the peak has no phases")
    if names[0] != names[1]:
        raise NothingToDraw(f"the phases of the two steps differ: {', '.join(names[0])}; and {', '.join(names[1])}")
    figure, panels = canvas.new_figure(2, 1, 4.6, sharex=True)
    places = [edge - edges[0][0] for edge in edges[0]]
    titles = [run.view.source if first.view.source != second.view.source else run.view.run_id for run in runs]
    for run, own, color, dash, title in zip(runs, edges, COLORS, ("solid", "dashed"), titles, strict=True):
        line = run.timeline
        events = line.sampled(own[0], own[-1], 2 * BUCKETS)
        at = np.interp(events, own, places)
        look = {"color": color, "linestyle": dash, "linewidth": 1.1, "label": canvas.plain(title)}
        for axes, values in zip(panels.flat, (line.allocated, line.reserved), strict=True):
            sizes = gib([values[event] for event in events])
            axes.step(at, sizes, where="post", **look)
    for axes, title in zip(panels.flat, ("allocated", "reserved"), strict=True):
        axes.set_xlim(0, places[-1])
        axes.set_ylabel(f"{title}, GiB")
    mark_phases(panels[0][0], list(zip(places[:-1], places[1:], names[0], strict=True)))
    mark_phases(panels[1][0], [(begin, begin, "") for begin in places[:-1]])
    canvas.from_zero(panels.flat)
    canvas.counted(panels[-1][0], f"events of the step, as many as in the {titles[0]} run")
    one, other = (run.timeline.allocated[run.timeline.peak] for run in runs)
    peaks = ", ".join(f"{title} {units.about(size)} GiB" for title, size in zip(titles, (one, other), strict=True))
    note = f"peaks of allocated memory: {peaks} ({units.signed_percent(other / one - 1)})"
    return canvas.finish(figure, first.sheet, "Memory over a step of two runs", [note])


def _phases_of_step(run: DrawnRun) -> tuple[list[str], list[int]]:
    """Return the phases of the step that holds the peak, and the events at their edges; what lies between two phases
    belongs to the one before."""
    begin, end = run.timeline.peak_step
    phases = [part for part in run.timeline.parts if part.phase and begin <= part.begin < end]
    return [part.phase for part in phases], [*(part.begin for part in phases), end]


# --- by phase ---------------------------------------------------------------------------------------------------------


APART = 0.2
"""Distance of a bar from the middle of its phase; a phase is 1 wide."""

FEWEST_ROWS = 6
"""Rows of the host's panel for which there is room at least, so that a single bar stays a bar."""


def by_phase(run: DrawnRun) -> Figure:
    """Draw two bars for each phase, of its run with the highest peak; the host's memory is the process's.

    Raises :class:`NothingToDraw` if the history has no phases.
    """
    if not run.rank.phases:
        raise NothingToDraw("the history has no phases")
    host = _host_peaks(run)
    columns = 2 if host else 1
    figure, panels = canvas.new_figure(1, columns, 4.0, gridspec_kw={"width_ratios": [3, 1][:columns]})
    _draw_bars(panels[0][0], run)
    if host:
        _draw_host_peaks(panels[0][1], host)
    notes = [run.note, "at the peak of each phase (left bar) and at its end (right bar)"]
    return canvas.finish(figure, run.sheet, "What holds the memory in each phase", notes)


def _draw_bars(axes: Any, run: DrawnRun) -> None:
    moments = [moment for phase in run.rank.phases for moment in (phase.peak, phase.end)]
    at = [number + side * APART for number in range(len(run.rank.phases)) for side in (-1, 1)]
    held = [held_by_kind(moment.holdings) for moment in moments]
    kinds = {kind: [each.get(kind, 0) for each in held] for kind in set().union(*held)}
    outside = [sum(share.nbytes for share in run.rank.device.outside(moment.event)) for moment in moments]
    canvas.stack_bars(
        axes, at, layers(kinds, [moment.reserved for moment in moments], outside), linewidth=0.4, width=0.36
    )
    names = [
        phase.part.phase.replace("_", "\n") + (f"\n(of {phase.times})" if phase.times > 1 else "")
        for phase in run.rank.phases
    ]
    axes.set_xticks(range(len(names)), names, fontsize=7.5)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("GiB of the device")


def _host_peaks(run: DrawnRun) -> dict[str, int]:
    """Return the peaks of the host's memory that the record has, in bytes: by phase if it has these."""
    result: Mapping[str, Any] = next(rank for rank in run.record.ranks if rank["rank"] == run.rank.rank)
    phases = (result["attached"] or {}).get("phases") or {}
    names = dict.fromkeys([*(phase.part.phase for phase in run.rank.phases), *phases])
    known = {name: nbytes for name in names if (nbytes := phases.get(name, {}).get("host_peak_bytes"))}
    whole = {"whole run": result["host_peak_bytes"], "page-locked": result["host_pinned_bytes"]}
    return {**known, **{name: nbytes for name, nbytes in whole.items() if nbytes}}


def _draw_host_peaks(axes: Any, host: Mapping[str, int]) -> None:
    bars = axes.barh(range(len(host)), gib(list(host.values())), color=OKABE_ITO[2][0], height=0.6)
    axes.bar_label(bars, [units.about(nbytes) for nbytes in host.values()], padding=3, fontsize=7)
    axes.margins(x=0.2)
    axes.set_yticks(range(len(host)), [name.replace("_", " ") for name in host], fontsize=7.5)
    axes.set_ylim(max(len(host), FEWEST_ROWS) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("GiB of the host,\npeak of the process")


# --- by rank ----------------------------------------------------------------------------------------------------------


QUANTITIES = {"peak_allocated_bytes": "peak allocated", "peak_reserved_bytes": "peak reserved"}

DARK = 0.75
"""Share of the highest value from which on a cell is so dark that its number is white."""

READABLE = 16
"""Most ranks whose cells have numbers."""


def over_ranks(run: DrawnRun) -> Figure:
    """Draw ranks x phases. Raises :class:`NothingToDraw` if no rank has memory by phase."""
    ranks = run.record.ranks
    phases = phases_of(ranks)
    if not phases:
        raise NothingToDraw("no rank has memory by phase")
    figure, panels = canvas.new_figure(1, 2, 1.6 + min(0.3 * len(ranks), 6.0), sharey=True)
    for axes, (key, name) in zip(panels[0], QUANTITIES.items(), strict=True):
        cells = np.array(
            [[rank["phases"].get(phase, {}).get(key, np.nan) for phase in phases] for rank in ranks], dtype=float
        )
        _draw_heat_map(figure, axes, cells / GIB, len(ranks) <= READABLE)
        axes.set_title(f"{name}, GiB")
        names = [phase.replace("_", " ") for phase in phases]
        axes.set_xticks(range(len(phases)), names, fontsize=7, rotation=35, ha="right", rotation_mode="anchor")
    panels[0][0].set_ylabel("rank")
    panels[0][0].set_yticks(range(len(ranks)), [rank["rank"] for rank in ranks], fontsize=7)
    return canvas.finish(figure, run.sheet, "Memory of each rank in each phase", [run.view.source])


def _draw_heat_map(figure: Figure, axes: Any, cells: Any, has_numbers: bool) -> None:
    image = axes.imshow(cells, cmap="Blues", vmin=0, aspect="auto")
    figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    axes.grid(visible=False)
    if not has_numbers:
        return
    for row, column in np.argwhere(~np.isnan(cells)):
        value = cells[row, column]
        color = "white" if value > DARK * np.nanmax(cells) else "black"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=6.5, color=color)


# --- files ------------------------------------------------------------------------------------------------------------


KIND = "explain"
"""Kind of these figures, for --kind. It is drawn only where it is asked for: the history of each run is replayed."""

OF_ONE_RUN: dict[str, Callable[[DrawnRun], Figure]] = {"step": over_step, "phases": by_phase, "ranks": over_ranks}

MOST = 8
"""Most runs whose histories are drawn at once."""


def draw_explained(views: Sequence[RunView], output: Path) -> Iterator[tuple[str, list[Path] | str]]:
    """Write the figures of each run, and of two runs one in which they lie over each other.

    Yields the kind with the files written, or with the reason for none.
    """
    runs: list[DrawnRun] = []
    for view in views[:MOST]:
        try:
            explained = explain(RunFolder(view.path))
            explained.need_history()
        except RecordError as error:
            yield KIND, str(error)
            continue
        yield from ((KIND, problem) for problem in explained.problems)
        runs.append(DrawnRun(view, explained.record, explained.shown))
    for number, run in enumerate(runs, start=1):
        of_run = "" if len(runs) == 1 else f"{number}-{Path(run.view.path).name}"
        for part, make in OF_ONE_RUN.items():
            if part != "ranks" or len(run.record.ranks) > 1:
                yield KIND, _written(partial(make, run), output, part, of_run)
    if len(runs) == 2:
        measured_first = sorted(runs, key=lambda run: run.view.source)
        yield KIND, _written(partial(overlaid, *measured_first), output, "overlaid", "")
    if len(views) > MOST:
        yield KIND, f"{len(views) - MOST} of {len(views)} runs are left out: name at most {MOST} run folders"


def _written(make: Callable[[], Figure], output: Path, *names: str) -> list[Path] | str:
    try:
        with canvas.style():
            return canvas.save(make(), output, "-".join(filter(None, (KIND, *names))))
    except NothingToDraw as reason:
        return str(reason)
