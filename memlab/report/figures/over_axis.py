"""Figures of memory and speed over sequence length or micro batch: the mean, in a band from lowest to highest rank."""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.identity import MICRO, TOKENS
from memlab.report import units
from memlab.report.figures.canvas import (
    FEW,
    OOM_COLOR,
    counted,
    finish,
    from_zero,
    gib,
    is_cloud,
    mark_oom,
    new_figure,
    plain,
    thousands,
)
from memlab.report.figures.series import NAMES, Series, series_over
from memlab.report.figures.sheet import NothingToDraw, Sheet
from memlab.report.palette import DASHES, MARKERS

RATES = {"iterations_per_second": "iterations/s", "tokens_per_second": "tokens/s, all GPUs"}

TITLES = {TOKENS: "sequence length", MICRO: "micro batch"}


def memory_over_seq_len(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    yield "", _memory(sheet, TOKENS)


def memory_over_batch(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    yield "", _memory(sheet, MICRO)


def speed_over_seq_len(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    yield "", _speed(sheet, TOKENS)


def speed_over_batch(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    yield "", _speed(sheet, MICRO)


def _memory(sheet: Sheet, axis: str) -> Figure:
    all_series = series_over(sheet, axis)
    figure, panels = new_figure(1, 2, sharey=True)
    for axes, key in zip(panels[0], (sheet.held, "peak_reserved_bytes"), strict=True):
        for series in all_series:
            positions, *sizes = series.ranks(key)
            _line(axes, sheet, series, positions, [gib(each) for each in sizes])
        axes.set_title(units.name(key))
        counted(axes, NAMES[axis])
    panels[0][0].set_ylabel("GiB per GPU")
    from_zero(panels[0], sheet.memory_gib)
    _mark_ooms(panels[0], sheet, all_series)
    several = any((run.config.get("hardware") or {}).get("gpus", 1) > 1 for run in sheet.runs)
    notes = ["line: mean over ranks; band: lowest to highest rank"] if several else []
    return finish(figure, sheet, f"Peak memory over {TITLES[axis]}", notes)


def _speed(sheet: Sheet, axis: str) -> Figure:
    all_series = series_over(sheet, axis)
    if not any(series.rate("tokens_per_second")[0] for series in all_series):
        raise NothingToDraw("no run has a speed")
    figure, panels = new_figure(1, 2)
    for axes, (key, name) in zip(panels[0], RATES.items(), strict=True):
        for series in all_series:
            positions, *rates = series.rate(key)
            _line(axes, sheet, series, positions, rates)
        axes.set_ylabel(name)
        thousands(axes.yaxis)
        counted(axes, NAMES[axis])
        from_zero([axes])
    _mark_ooms(panels[0], sheet, all_series)
    return finish(figure, sheet, f"Speed over {TITLES[axis]}")


def _line(axes: Any, sheet: Sheet, series: Series, positions: Sequence[int], values: Sequence[Sequence[float]]) -> None:
    """Draw one line with its band. ``values``: lowest, mean and highest at each position."""
    if not positions:
        return
    look = sheet.styles[series.label]
    low, middle, high = values
    axes.fill_between(positions, low, high, color=look.color, alpha=0.22, linewidth=0, rasterized=is_cloud(positions))
    marker = MARKERS[(MARKERS.index(look.marker) + series.turn) % len(MARKERS)]
    axes.plot(
        positions,
        middle,
        color=look.color,
        linestyle=DASHES[(DASHES.index(look.dash) + series.turn) % len(DASHES)],
        marker=marker if len(positions) <= FEW else None,
        linewidth=0.8 if is_cloud(positions) else 1.5,
        rasterized=is_cloud(positions),
        label=plain(series.name),
    )


def _mark_ooms(panels: Sequence[Any], sheet: Sheet, all_series: Sequence[Series]) -> None:
    for axes in panels:
        for series in all_series:
            for position in series.ooms:
                mark_oom(axes, position, sheet.styles[series.label].color)
    if any(series.ooms for series in all_series):
        panels[0].plot([], [], marker="X", markersize=7, color=OOM_COLOR, linestyle="none", label="out of GPU memory")
