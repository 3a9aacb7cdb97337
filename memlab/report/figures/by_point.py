"""Figures of single points: memory against speed and against its prediction, by phase and inside a step, and cost."""

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.effects import Pair, effects_by
from memlab.analyse.identity import MODE, point_of, tokens_of
from memlab.analyse.run_view import RunView, peak
from memlab.core.errors import RecordError
from memlab.core.record import PHASES
from memlab.core.sizes import GIB
from memlab.report import units
from memlab.report.figures import canvas
from memlab.report.figures.canvas import OOM_COLOR, NothingToDraw, Sheet, gib
from memlab.report.palette import OKABE_ITO
from memlab.runs.folder import RunFolder


def reserved_against_allocated(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw reserved against allocated memory with the line of equality; right of it, the difference over tokens."""
    held = sheet.held
    figure, panels = canvas.new_figure(1, 2)
    against, gap = panels[0]
    highest = 0.0
    has_both = sheet.having(
        lambda run: peak(run, held) is not None and _memory(run), "no run has both allocated and reserved memory"
    )
    for label, members in has_both.items():
        points = sorted((tokens_of(run), (peak(run, held) or 0) / GIB, _memory(run)) for run in members)
        tokens, used, reserved = zip(*points, strict=True)
        highest = max(highest, *reserved, *used)
        marks = canvas.cloud(sheet.styles[label], points, alpha=0.8)
        against.plot(used, reserved, label=canvas.plain(sheet.short(label)) or "runs", **marks)
        gap.plot(tokens, [high - low for low, high in zip(used, reserved, strict=True)], **marks)
    against.plot([0, highest], [0, highest], color=OOM_COLOR, linewidth=0.9, label=f"reserved = {_word(held)}")
    against.set_xlabel(f"{units.name(held)}, GiB, highest rank")
    against.set_ylabel("peak reserved, GiB, highest rank")
    against.set_xlim(0, highest * 1.06)
    canvas.from_zero([against])
    canvas.counted(gap, "tokens of one forward (micro batch x sequence length)")
    gap.set_ylabel(f"reserved beyond {_word(held)}, GiB")
    canvas.from_zero([gap])
    yield "", canvas.finish(figure, sheet, f"Reserved against {_word(held)} memory")


def _word(key: str) -> str:
    return units.name(key).removeprefix("peak ")


BAND = 0.05

PREDICTED = ("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes")


def predicted_against_measured(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    pairs = [pair for pair in effects_by(sheet.runs, MODE).pairs if pair.interpolated is None]
    keys = [key for key in PREDICTED if any(key in pair.differences for pair in pairs)]
    if not keys:
        raise NothingToDraw("no experiment was both measured and predicted")
    figure, panels = canvas.new_figure(1, len(keys))
    for axes, key in zip(panels[0], keys, strict=True):
        _against_measured(axes, sheet, [pair for pair in pairs if key in pair.differences], key)
    note = f"grey: within {units.percent(BAND)} of the measurement"
    yield "", canvas.finish(figure, sheet, "Predicted against measured memory", [note])


def _against_measured(axes: Any, sheet: Sheet, pairs: list[Pair], key: str) -> None:
    for where in dict.fromkeys(pair.where for pair in pairs):
        look = sheet.look(where)
        both = [pair.differences[key] for pair in pairs if pair.where == where]
        measured, predicted = ([getattr(each, side).value / GIB for each in both] for side in ("base", "other"))
        marks = {"color": look.color, "marker": look.marker, "linestyle": "none", "alpha": 0.85}
        axes.plot(measured, predicted, label=canvas.plain(sheet.short(where)) or "runs", **marks)
    top = 1.06 * max(max(pair.differences[key].base.value, pair.differences[key].other.value) for pair in pairs) / GIB
    axes.fill_between([0, top], [0, top * (1 - BAND)], [0, top * (1 + BAND)], color="#999999", alpha=0.25, linewidth=0)
    axes.plot([0, top], [0, top], color=OOM_COLOR, linewidth=0.9, label="predicted = measured")
    errors = [abs(each.relative) for pair in pairs if (each := pair.differences[key]).relative is not None]
    middle, largest = (units.percent(share, 1) for share in (median(errors), max(errors)))
    axes.set_title(f"{units.name(key)}: {len(errors)} pairs\nerror {middle} median, {largest} largest")
    axes.set_xlabel("measured, GiB, highest rank")
    axes.set_ylabel("predicted, GiB, highest rank")
    axes.set_xlim(0, top)
    canvas.from_zero([axes])
    axes.set_ylim(0, top)


LABELLED = 8
"""Most points of the front with a label; more labels would cover one another."""


def pareto(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw reserved memory of the highest rank against tokens/s of all GPUs."""
    figure, panels = canvas.new_figure(1, 1, 4.0)
    axes = panels[0][0]
    lacking = f"no run has both memory and a known speed{sheet.unknown_speed}"
    known = sheet.having(lambda run: _memory(run) and _speed(run), lacking)
    for label, points in known.items():
        marks = canvas.cloud(sheet.styles[label], points, alpha=0.75)
        axes.plot(*_places(points), label=canvas.plain(sheet.short(label)) or "runs", **marks)
    drawn = [run for points in known.values() for run in points]
    best = front(drawn)
    axes.step(
        *_places(best), where="post", color=OOM_COLOR, linewidth=1.0, label="front: no run is faster with less memory"
    )
    for run in best[:: -(len(best) // LABELLED + 1)]:
        micro, tokens = point_of(run)
        where = (_memory(run), _speed(run))
        axes.annotate(
            f"{micro:,} x {tokens:,}", where, xytext=(-3, 5), textcoords="offset points", fontsize=7.5, ha="right"
        )
    axes.set_xlabel("peak reserved, GiB, highest rank")
    axes.set_ylabel("tokens/s, all GPUs")
    canvas.thousands(axes.yaxis)
    axes.set_xlim(0, 1.08 * max(map(_memory, drawn)))
    canvas.from_zero([axes])
    yield "", canvas.finish(figure, sheet, "Memory against speed", ["named: micro batch x tokens"])


def front(runs: Iterable[RunView]) -> list[RunView]:
    """Find the runs that no other run beats in both memory and speed, least memory first."""
    found: list[RunView] = []
    for run in sorted(runs, key=lambda run: (_memory(run), -_speed(run))):
        if not found or _speed(run) > _speed(found[-1]):
            found.append(run)
    return found


def _places(runs: Iterable[RunView]) -> tuple[list[float], list[float]]:
    return list(map(_memory, runs)), list(map(_speed, runs))


def _memory(run: RunView) -> float:
    return (peak(run, "peak_reserved_bytes") or 0) / GIB


def _speed(run: RunView) -> float:
    """Return the rate; 0 for a rate that is not known, or only an upper bound: no front is made of bounds."""
    return run.comparable("tokens_per_second") or 0.0


PRICE = "usd_per_million_tokens"


def cost(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw a bar for the cheapest point of each configuration, cheapest first, and a tick for every other point."""
    lacking = f"no run has a price and a known speed{sheet.unknown_speed or ' (hardware.usd_per_gpu_hour)'}"
    known = sheet.having(lambda run: run.comparable(PRICE), lacking)
    priced = {label: sorted(points, key=lambda run: run.summary[PRICE]) for label, points in known.items()}
    ordered = sorted(priced, key=lambda label: priced[label][0].summary[PRICE])
    figure, panels = canvas.new_figure(1, 1, 1.0 + 0.42 * len(ordered))
    axes = panels[0][0]
    right = 1.5 * max(priced[label][0].summary[PRICE] for label in ordered)
    for place, label in enumerate(ordered):
        costs = [run.summary[PRICE] for run in priced[label]]
        axes.barh(place, costs[0], color=sheet.styles[label].color, height=0.62)
        inside = [each for each in costs[1:] if each < right]
        axes.plot(inside, [place] * len(inside), "|", color="#333333", markersize=9, alpha=0.6)
        # The caption is right of the axes, so no bar or tick covers it.
        axes.text(
            1.01, place, f"\\${costs[0]:,.3g}  ({_point(priced[label][0])})", fontsize=8, va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.set_yticks(
        range(len(ordered)), [canvas.wrapped(sheet.short(label), 44) or "all runs" for label in ordered], fontsize=8
    )
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, right)
    axes.set_xlabel("USD per million tokens")
    note = "bar: the cheapest point, named on the right; ticks: the other points within the axis"
    yield "", canvas.finish(figure, sheet, "Cost of each configuration", [note])


PARTS = (
    ("allocated at the end of the phase", OKABE_ITO[0][0], ""),
    ("allocated at its peak only", OKABE_ITO[5][0], ""),
    ("reserved beyond that", "#FFFFFF", "////"),
)

PANELS_IN_A_ROW, MOST_PANELS = 3, 9


def phases(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw the largest point of each configuration, for at most nine configurations."""
    known = sheet.having(lambda run: set(PHASES) & run.phases.keys(), "no run has memory by phase")
    chosen = {label: max(runs, key=tokens_of) for label, runs in known.items()}
    figure, panels, notes = canvas.new_panels(chosen, MOST_PANELS, PANELS_IN_A_ROW, (0.6, 2.4), sharey=True)
    for axes, (label, run) in zip(panels, chosen.items(), strict=False):
        _bars(axes, run)
        canvas.entitle(axes, sheet.short(label), 42, _point(run))
    for axes in panels[::PANELS_IN_A_ROW]:
        axes.set_ylabel("GiB, highest rank")
    canvas.from_zero(panels)
    yield "", canvas.finish(figure, sheet, "Memory by phase", [*notes, "the largest point of each configuration"])


def _point(run: RunView) -> str:
    micro, tokens = point_of(run)
    return f"batch {micro:,}, {tokens:,} tokens"


def stack(phase: dict[str, dict[str, int]]) -> list[float]:
    """Return the heights of :data:`PARTS` in bytes; their sum is the reserved peak."""
    end, allocated, reserved = (
        phase.get(key, {}).get("max", 0)
        for key in ("end_allocated_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
    )
    return [end, max(0, allocated - end), max(0, reserved - max(allocated, end))]


def _bars(axes: Any, run: RunView) -> None:
    names = [name for name in PHASES if name in run.phases]
    stacks = [stack(run.phases[name]) for name in names]
    layers = [(*part, [each[number] for each in stacks]) for number, part in enumerate(PARTS)]
    canvas.stack_bars(axes, range(len(names)), layers, linewidth=0.5)
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names], fontsize=6.5)
    axes.grid(axis="x", visible=False)


MOST_CURVES = 4
"""Most panels of a figure."""


def step_memory(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw the largest point with a curve of each configuration, one panel below the other."""
    curves = {label: found for label, members in sheet.configurations.items() if (found := _largest(members))}
    if not curves:
        raise NothingToDraw("no record keeps its memory over a step (predictions do)")
    figure, panels, notes = canvas.new_panels(curves, MOST_CURVES, 1, (0.6, 2.1), sharey=True)
    for axes, (label, (run, curve)) in zip(panels, curves.items(), strict=False):
        _draw_curve(axes, curve, sheet.styles[label].color)
        axes.set_title(canvas.plain(", ".join(filter(None, (sheet.short(label), _point(run))))), pad=16)
        axes.set_ylabel("GiB")
    canvas.counted(panels[-1], "allocations and frees since the step began")
    canvas.from_zero(panels)
    yield "", canvas.finish(figure, sheet, "Memory inside one step", notes)


def _largest(members: list[RunView]) -> tuple[RunView, Mapping[str, Any]] | None:
    largest_first = sorted((run for run in members if run.fits_and_lasts), key=tokens_of, reverse=True)
    return next(((run, curve) for run in largest_first if (curve := _curve(run))), None)


def _curve(run: RunView) -> Mapping[str, Any] | None:
    """Return the curve of the rank with the highest peak that has a valid curve; ``None`` without one."""
    try:
        ranks = RunFolder(run.path).read_record().ranks
    except RecordError:
        return None
    for rank in sorted(ranks, key=lambda rank: rank.get("peak_reserved_bytes") or 0, reverse=True):
        curve = rank["curve"]
        lengths = {len(curve[key]) for key in ("event", "allocated_bytes", "reserved_bytes")} if curve else {0}
        if len(lengths) == 1 and 0 not in lengths:
            return curve
    return None


def _draw_curve(axes: Any, curve: Mapping[str, Any], color: str) -> None:
    events = curve["event"]
    axes.fill_between(events, gib(curve["allocated_bytes"]), step="post", color=color, alpha=0.45, label="allocated")
    axes.step(events, gib(curve["reserved_bytes"]), where="post", color=OOM_COLOR, linewidth=1.2, label="reserved")
    axes.set_xlim(events[0], events[-1])
    for position, name in curve.get("phases") or []:
        axes.axvline(position, color="#999999", linewidth=0.7)
        where = axes.get_xaxis_transform()
        axes.text(
            position, 1.02, canvas.plain(str(name).replace("_", " ")), fontsize=7.5, transform=where, clip_on=False
        )
