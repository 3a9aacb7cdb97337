"""Scatter figures: memory against speed, predicted against measured, and reserved against allocated memory."""

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.effects import Pair, effects_by
from memlab.analyse.identity import MODE, point_of, tokens_of
from memlab.analyse.run_view import RunView, peak
from memlab.core.sizes import GIB
from memlab.report import units
from memlab.report.figures.canvas import (
    OOM_COLOR,
    counted,
    finish,
    from_zero,
    is_cloud,
    marker_size,
    new_figure,
    plain,
    thousands,
)
from memlab.report.figures.sheet import NothingToDraw, Sheet


def reserved_against_allocated(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw reserved against allocated memory with the line of equality; right of it, the difference over tokens."""
    held = sheet.held
    figure, panels = new_figure(1, 2)
    against, gap = panels[0]
    highest = 0.0
    for label, members in sheet.configurations.items():
        points = sorted(
            (tokens_of(run), peak(run, held) / GIB, peak(run, "peak_reserved_bytes") / GIB)
            for run in members
            if run.fits_and_lasts and peak(run, held) is not None and peak(run, "peak_reserved_bytes") is not None
        )
        if not points:
            continue
        look = sheet.styles[label]
        tokens, used, reserved = zip(*points, strict=True)
        highest = max(highest, *reserved, *used)
        marks = {"color": look.color, "marker": look.marker, "linestyle": "none", "alpha": 0.8}
        marks |= {"markeredgewidth": 0, "markersize": marker_size(points), "rasterized": is_cloud(points)}
        against.plot(used, reserved, label=plain(sheet.short(label)) or "runs", **marks)
        gap.plot(tokens, [high - low for low, high in zip(used, reserved, strict=True)], **marks)
    if not highest:
        raise NothingToDraw("no run has both allocated and reserved memory")
    against.plot([0, highest], [0, highest], color=OOM_COLOR, linewidth=0.9, label=f"reserved = {_word(held)}")
    against.set_xlabel(f"{units.name(held)}, GiB, highest rank")
    against.set_ylabel("peak reserved, GiB, highest rank")
    against.set_xlim(0, highest * 1.06)
    from_zero([against])
    counted(gap, "tokens of one forward (micro batch x sequence length)")
    gap.set_ylabel(f"reserved beyond {_word(held)}, GiB")
    from_zero([gap])
    yield "", finish(figure, sheet, f"Reserved against {_word(held)} memory")


def _word(key: str) -> str:
    return units.name(key).removeprefix("peak ")


BAND = 0.05

KEYS = ("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes")


def predicted_against_measured(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    pairs = [pair for pair in effects_by(sheet.runs, MODE).pairs if pair.interpolated is None]
    keys = [key for key in KEYS if any(key in pair.differences for pair in pairs)]
    if not keys:
        raise NothingToDraw("no experiment was both measured and predicted")
    figure, panels = new_figure(1, len(keys))
    for axes, key in zip(panels[0], keys, strict=True):
        _panel(axes, sheet, [pair for pair in pairs if key in pair.differences], key)
    yield (
        "",
        finish(
            figure,
            sheet,
            "Predicted against measured memory",
            [f"grey: within {units.percent(BAND)} of the measurement"],
        ),
    )


def _panel(axes: Any, sheet: Sheet, pairs: list[Pair], key: str) -> None:
    for where in dict.fromkeys(pair.where for pair in pairs):
        look = sheet.look(where)
        both = [pair.differences[key] for pair in pairs if pair.where == where]
        measured, predicted = ([getattr(each, side).value / GIB for each in both] for side in ("base", "other"))
        marks = {"color": look.color, "marker": look.marker, "linestyle": "none", "alpha": 0.85}
        axes.plot(measured, predicted, label=plain(sheet.short(where)) or "runs", **marks)
    top = 1.06 * max(max(pair.differences[key].base.value, pair.differences[key].other.value) for pair in pairs) / GIB
    axes.fill_between([0, top], [0, top * (1 - BAND)], [0, top * (1 + BAND)], color="#999999", alpha=0.25, linewidth=0)
    axes.plot([0, top], [0, top], color=OOM_COLOR, linewidth=0.9, label="predicted = measured")
    errors = [abs(each.relative) for pair in pairs if (each := pair.differences[key]).relative is not None]
    middle, largest = (units.percent(share, 1) for share in (median(errors), max(errors)))
    axes.set_title(f"{units.name(key)}: {len(errors)} pairs\nerror {middle} median, {largest} largest")
    axes.set_xlabel("measured, GiB, highest rank")
    axes.set_ylabel("predicted, GiB, highest rank")
    axes.set_xlim(0, top)
    from_zero([axes])
    axes.set_ylim(0, top)


LABELLED = 8
"""Most points of the front with a label; more labels would cover one another."""


def pareto(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw reserved memory of the highest rank against tokens/s of all GPUs."""
    figure, panels = new_figure(1, 1, 4.0)
    axes = panels[0][0]
    drawn = []
    for label, members in sheet.configurations.items():
        points = [run for run in members if run.fits_and_lasts and _memory(run) and _speed(run)]
        drawn += points
        look = sheet.styles[label]
        marks = {"color": look.color, "marker": look.marker, "linestyle": "none", "markeredgewidth": 0, "alpha": 0.75}
        marks |= {"markersize": marker_size(points), "rasterized": is_cloud(points)}
        if points:
            x, y = [_memory(run) for run in points], [_speed(run) for run in points]
            axes.plot(x, y, label=plain(sheet.short(label)) or "runs", **marks)
    if not drawn:
        raise NothingToDraw(f"no run has both memory and a known speed{sheet.unknown_speed}")
    best = front(drawn)
    x, y = [_memory(run) for run in best], [_speed(run) for run in best]
    axes.step(x, y, where="post", color=OOM_COLOR, linewidth=1.0, label="front: no run is faster with less memory")
    for run in best[:: -(len(best) // LABELLED + 1)]:
        micro, tokens = point_of(run)
        where = (_memory(run), _speed(run))
        axes.annotate(
            f"{micro:,} x {tokens:,}", where, xytext=(-3, 5), textcoords="offset points", fontsize=7.5, ha="right"
        )
    axes.set_xlabel("peak reserved, GiB, highest rank")
    axes.set_ylabel("tokens/s, all GPUs")
    thousands(axes.yaxis)
    axes.set_xlim(0, 1.08 * max(map(_memory, drawn)))
    from_zero([axes])
    yield "", finish(figure, sheet, "Memory against speed", ["named: micro batch x tokens"])


def front(runs: Iterable[RunView]) -> list[RunView]:
    """Find the runs that no other run beats in both memory and speed, least memory first."""
    found: list[RunView] = []
    for run in sorted(runs, key=lambda run: (_memory(run), -_speed(run))):
        if not found or _speed(run) > _speed(found[-1]):
            found.append(run)
    return found


def _memory(run: RunView) -> float:
    return (peak(run, "peak_reserved_bytes") or 0) / GIB


def _speed(run: RunView) -> float:
    """Return the rate; 0 for a rate that is not known, or only an upper bound: no front is made of bounds."""
    return run.comparable("tokens_per_second") or 0.0
