"""Figures over sequence length or micro batch: memory and speed, two options with their difference, the fitted line.

A curve is the mean over ranks, in a band from the lowest to the highest rank.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from memlab.analyse.effects import Effects, Pair, effects_by
from memlab.analyse.fit import Fit, fit_all
from memlab.analyse.identity import MICRO, TOKENS, configurations, differing_axes
from memlab.core.sizes import GIB
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
    marker_size,
    new_figure,
    plain,
    thousands,
    wrapped,
)
from memlab.report.figures.series import NAMES, Series, series_over
from memlab.report.figures.sheet import NothingToDraw, Sheet
from memlab.report.fit_text import equation
from memlab.report.palette import DASHES, MARKERS, OKABE_ITO, Style

COLUMNS, MOST = 2, 8


def fit(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw live tensors, then reserved memory: a panel for each configuration with three token counts or more."""
    drawn = 0
    for key in dict.fromkeys((sheet.held, "peak_reserved_bytes")):
        fits, _ = fit_all(sheet.runs, key)
        labels = _labels_of(sheet)
        if fits:
            drawn += 1
            yield units.name(key).removeprefix("peak "), _figure(sheet, [(labels[each.label], each) for each in fits])
    if not drawn:
        raise NothingToDraw("no configuration has three token counts")


def _labels_of(sheet: Sheet) -> dict[str, str]:
    """Map the label of a configuration within the sheet to its label in the whole report."""
    return dict(zip(configurations(sheet.runs), sheet.configurations, strict=True))


def _figure(sheet: Sheet, fits: list[tuple[str, Fit]]) -> Figure:
    shown = fits[:MOST]
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure, panels = new_figure(rows, columns, 0.5 + 2.7 * rows)
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, (label, each) in zip(panels.flat, shown, strict=False):
        _panel(axes, each, sheet.styles[label])
        words = [wrapped(sheet.short(label), 60), equation(each), _quality(each)]
        axes.set_title("\n".join(filter(None, words)), fontsize=8, loc="left")
        axes.set_ylabel(f"{units.name(each.quantity)}, GiB")
        counted(axes, "tokens of one forward (micro batch x sequence length)")
    more = [f"{MOST} of {len(fits)} configurations"] if len(fits) > MOST else []
    return finish(figure, sheet, f"{units.name(fits[0][1].quantity).capitalize()} over tokens, highest rank", more)


def _panel(axes: Any, each: Fit, look: Style) -> None:
    line, last = each.line, max(each.tokens)
    x = np.unique(np.append(np.linspace(0, 1.05 * last, 200), line.hinge or 0))
    y = np.array([line.at(position) for position in x]) / GIB
    half = np.array([line.interval_at(position) for position in x]) / GIB
    axes.plot(
        each.tokens,
        [value / GIB for value in each.bytes],
        color=look.color,
        marker=look.marker,
        markersize=marker_size(each.tokens),
        linestyle="none",
        markeredgewidth=0,
        rasterized=is_cloud(each.tokens),
    )
    axes.plot(x, y, color=OOM_COLOR, linewidth=1.1, label="fit")
    if half[0] != inf:
        axes.fill_between(
            x, y - half, y + half, color="#999999", alpha=0.3, linewidth=0, label="95 % of new measurements"
        )
    if line.hinge is not None:
        axes.axvline(line.hinge, color=OOM_COLOR, linewidth=0.9, linestyle=(0, (2, 2)), label="hinge")
    if each.oom_tokens is not None:
        mark_oom(axes, each.oom_tokens, OOM_COLOR, "out of GPU memory")
    from_zero([axes], each.memory_gib)


def _quality(each: Fit) -> str:
    words = [f"R² = {each.line.r2:.4f}", f"{each.line.n:,} points"]
    if each.line.hinge is not None:
        words.append(f"leaves the flat part at {each.line.hinge:,.0f} tokens")
    return ", ".join(words)


BASE, OTHER = OKABE_ITO[0][0], OKABE_ITO[1][0]
"""Fixed colours: the two lines are options, and an option may have several configurations."""

Group = tuple[str, str, str, int]
"""Configuration shared by both options, base option, other option, micro batch."""


def overlays(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw each two options of each axis, for every configuration with three or more sequence lengths of both."""
    drawn = 0
    for axis in differing_axes(sheet.runs):
        if axis in ("seq_len", "batch"):
            continue
        for number, (group, pairs) in enumerate(_lines(effects_by(sheet.runs, axis), 3).items(), 1):
            drawn += 1
            where, base, other, micro = group
            title = f"{axis}: {base} and {other}"
            words = [word for word in sheet.short(where).split() if not word.startswith(f"{axis}=")]
            note = ", ".join(filter(None, [" ".join(words), f"batch {micro}"]))
            yield f"{axis}-{number}", overlay(sheet, pairs, title, [note])
    if not drawn:
        raise NothingToDraw("no two options of an axis have three sequence lengths in common")


def slices_overlay(sheet: Sheet, effects: Effects) -> Iterator[tuple[str, Figure]]:
    """Draw two slices of any kind. Warnings about other differences go above the figure."""
    groups = _lines(effects, 2)
    if not groups:
        raise NothingToDraw("the slices do not share two sequence lengths at one batch")
    for (_, base, other, micro), pairs in groups.items():
        yield (
            f"batch-{micro}",
            overlay(sheet, pairs, f"{base} and {other}".replace(",", ", "), [f"batch {micro}", *effects.warnings]),
        )


def overlay(sheet: Sheet, pairs: Sequence[Pair], title: str, notes: Sequence[str]) -> Figure:
    """Draw live tensors, reserved memory and speed of both sides, with the difference and its noise below each."""
    keys = [key for key in (sheet.held, "peak_reserved_bytes", "tokens_per_second") if _has(pairs, key)]
    figure, panels = new_figure(2, len(keys), 4.4, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
    for column, key in enumerate(keys):
        above, below = panels[0][column], panels[1][column]
        shown = [pair for pair in pairs if key in pair.differences]
        _both(above, shown, key)
        _difference(below, shown, key)
        above.set_title(units.name(key))
        counted(below, "sequence length, tokens")
    guessed = sum(pair.interpolated is not None for pair in pairs)
    if guessed:
        where = "hollow:" if len(pairs) <= FEW else f"at {guessed} of {len(pairs)} lengths one side is"
        notes = [*notes, f"{where} interpolated between its two neighbours"]
    return finish(figure, sheet, title, notes)


def _lines(effects: Effects, least: int) -> dict[Group, list[Pair]]:
    """Group the pairs into lines, and keep lines of at least ``least`` pairs."""
    groups: dict[Group, list[Pair]] = {}
    for pair in effects.pairs:
        groups.setdefault((pair.where, pair.base, pair.other, pair.micro), []).append(pair)
    return {group: pairs for group, pairs in groups.items() if len(pairs) >= least}


def _has(pairs: Sequence[Pair], key: str) -> bool:
    return any(key in pair.differences for pair in pairs)


def _both(axes: Any, pairs: Sequence[Pair], key: str) -> None:
    for side, color, marker in (("base", BASE, "o"), ("other", OTHER, "s")):
        tokens = [pair.tokens for pair in pairs]
        values = [_scaled(key, getattr(pair.differences[key], side).value) for pair in pairs]
        axes.plot(tokens, values, color=color, label=plain(getattr(pairs[0], side).replace(",", ", ")))
        if len(pairs) > FEW:
            continue
        for pair, value in zip(pairs, values, strict=True):
            fill = "white" if pair.interpolated == side else color
            axes.plot(pair.tokens, value, color=color, marker=marker, markerfacecolor=fill)
    axes.set_ylabel(_unit(key))
    thousands(axes.yaxis)
    from_zero([axes])


def _difference(axes: Any, pairs: Sequence[Pair], key: str) -> None:
    tokens = [pair.tokens for pair in pairs]
    differences = [pair.differences[key] for pair in pairs]
    if all(each.noise is not None for each in differences):
        noise = [_scaled(key, each.noise) for each in differences]
        axes.fill_between(
            tokens, [-each for each in noise], noise, color="#999999", alpha=0.3, linewidth=0, label="noise"
        )
    axes.axhline(0, color=OOM_COLOR, linewidth=0.8)
    marker = "o" if len(pairs) <= FEW else None
    values = [_scaled(key, each.absolute) for each in differences]
    axes.plot(tokens, values, color=OOM_COLOR, marker=marker, label="difference (second minus first)")
    axes.set_ylabel(f"difference, {_unit(key).removesuffix(' per GPU')}")
    thousands(axes.yaxis)


def _scaled(key: str, value: float) -> float:
    return value / GIB if key.endswith("_bytes") else value


def _unit(key: str) -> str:
    return "GiB per GPU" if key.endswith("_bytes") else "tokens/s"


RATES = {"iterations_per_second": "iterations/s", "tokens_per_second": "tokens/s, all GPUs"}

TITLES = {TOKENS: "sequence length", MICRO: "micro batch"}


def memory_over(sheet: Sheet, axis: str) -> Iterator[tuple[str, Figure]]:
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
    yield "", finish(figure, sheet, f"Peak memory over {TITLES[axis]}", notes)


def speed_over(sheet: Sheet, axis: str) -> Iterator[tuple[str, Figure]]:
    all_series = series_over(sheet, axis)
    if not any(series.rate("tokens_per_second")[0] for series in all_series):
        raise NothingToDraw(f"no run has a known speed{sheet.unknown_speed}")
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
    yield "", finish(figure, sheet, f"Speed over {TITLES[axis]}")


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
