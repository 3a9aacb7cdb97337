"""Figures over sequence length or micro batch: memory and speed, two options with their difference, the fitted line.

A curve is the mean over ranks, in a band from the lowest to the highest rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from memlab.analyse.effects import Effects, Pair, effects_by
from memlab.analyse.fit import Fit, fit_all
from memlab.analyse.identity import MICRO, TOKENS, configurations, differing_axes, point_of
from memlab.analyse.run_view import RunView
from memlab.core.grouping import grouped
from memlab.core.sizes import GIB
from memlab.report import units
from memlab.report.figures import canvas
from memlab.report.figures.canvas import OOM_COLOR, NothingToDraw, Sheet, gib, is_cloud
from memlab.report.fit_text import equation
from memlab.report.palette import DASHES, MARKERS, OKABE_ITO, Style

NAMES = {TOKENS: "sequence length, tokens", MICRO: "micro batch, samples per GPU"}
"""Axis -> its label in figures."""


Band = list[tuple[int, float, float, float]]
"""Positions, with the lowest, mean and highest value at each, over ranks and repeats."""

ENDS = ("min", "mean", "max")


@dataclass(frozen=True)
class Series:
    """One line of a figure. ``label``: its configuration; ``name``: its legend. Positions are values of the axis."""

    label: str
    name: str
    points: dict[int, list[RunView]]  # position -> the repeats that ended as ok
    ooms: tuple[int, ...]  # positions that ran out of GPU memory
    turn: int  # index of the series within its configuration

    def band(self, key: str) -> Band:
        """Return the band of a key over all repeats. Rates that are only bounds are left out."""
        band = []
        for position, repeats in sorted(self.points.items()):
            known = [value for run in repeats if (value := run.comparable(key)) is not None]
            # A rate is one number for all ranks.
            found = [each if isinstance(each, dict) else dict.fromkeys(ENDS, each) for each in known]
            if found:
                low, high = min(each["min"] for each in found), max(each["max"] for each in found)
                band.append((position, low, mean(each["mean"] for each in found), high))
        return band


def series_over(sheet: Sheet, axis: str) -> list[Series]:
    """Make the series over sequence length or micro batch; each series has one value of the other axis.

    Raises :class:`NothingToDraw` where no configuration has two positions.
    """
    found = []
    here, other = (1, 0) if axis == TOKENS else (0, 1)
    others = {point_of(run)[other] for run in sheet.runs}
    for label, members in sheet.configurations.items():
        turn = 0
        for fixed, runs in sorted(grouped(members, lambda run: point_of(run)[other]).items()):
            points = grouped((run for run in runs if run.fits_and_lasts), lambda run: point_of(run)[here])
            ooms = tuple(sorted({point_of(run)[here] for run in runs if run.status == "gpu_oom"}))
            if len({*points, *ooms}) < 2:
                continue
            point = f"batch {fixed:,}" if axis == TOKENS else f"{fixed:,} tokens"
            words = [sheet.short(label), point if len(others) > 1 or not sheet.short(label) else ""]
            if points:
                found.append(Series(label, ", ".join(word for word in words if word), points, ooms, turn))
            turn += 1
    if not found:
        raise NothingToDraw(f"no configuration has two points along {axis}")
    return found


COLUMNS, MOST = 2, 8


def fit(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw live tensors, then reserved memory: a panel for each configuration with three token counts or more."""
    labels = dict(zip(configurations(sheet.runs), sheet.configurations, strict=True))  # here -> in the whole report
    found = {key: fit_all(sheet.runs, key)[0] for key in (sheet.held, "peak_reserved_bytes")}
    if not any(found.values()):
        raise NothingToDraw("no configuration has three token counts")
    for key, fits in found.items():
        if fits:
            yield units.name(key).removeprefix("peak "), _figure(sheet, [(labels[each.label], each) for each in fits])


def _figure(sheet: Sheet, fits: list[tuple[str, Fit]]) -> Figure:
    figure, panels, notes = canvas.new_panels(fits, MOST, COLUMNS, (0.5, 2.7))
    for axes, (label, each) in zip(panels, fits, strict=False):
        _panel(axes, each, sheet.styles[label])
        canvas.entitle(axes, sheet.short(label), 60, equation(each), _quality(each))
        axes.set_ylabel(f"{units.name(each.quantity)}, GiB")
        canvas.counted(axes, "tokens of one forward (micro batch x sequence length)")
    return canvas.finish(
        figure, sheet, f"{units.name(fits[0][1].quantity).capitalize()} over tokens, highest rank", notes
    )


def _panel(axes: Any, each: Fit, look: Style) -> None:
    line, last = each.line, max(each.tokens)
    x = np.unique(np.append(np.linspace(0, 1.05 * last, 200), line.hinge or 0))
    y = np.array([line.at(position) for position in x]) / GIB
    half = np.array([line.interval_at(position) for position in x]) / GIB
    axes.plot(each.tokens, gib(each.bytes), **canvas.cloud(look, each.tokens))
    axes.plot(x, y, color=OOM_COLOR, linewidth=1.1, label="fit")
    if half[0] != inf:
        axes.fill_between(
            x, y - half, y + half, color="#999999", alpha=0.3, linewidth=0, label="95 % of new measurements"
        )
    if line.hinge is not None:
        axes.axvline(line.hinge, color=OOM_COLOR, linewidth=0.9, linestyle=(0, (2, 2)), label="hinge")
    if each.oom_tokens is not None:
        canvas.mark_oom(axes, each.oom_tokens, OOM_COLOR, "out of GPU memory")
    canvas.from_zero([axes], each.memory_gib)


def _quality(each: Fit) -> str:
    words = [f"R² = {each.line.r2:.4f}", f"{each.line.n:,} points"]
    if each.line.hinge is not None:
        words.append(f"leaves the flat part at {each.line.hinge:,.0f} tokens")
    return ", ".join(words)


BASE, OTHER = OKABE_ITO[0][0], OKABE_ITO[1][0]
"""Fixed colours: the two lines are options, and an option may have several configurations."""


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
        title = f"{base} and {other}".replace(",", ", ")
        yield f"batch-{micro}", overlay(sheet, pairs, title, [f"batch {micro}", *effects.warnings])


def overlay(sheet: Sheet, pairs: Sequence[Pair], title: str, notes: Sequence[str]) -> Figure:
    """Draw live tensors, reserved memory and speed of both sides, with the difference and its noise below each."""
    wanted = (sheet.held, "peak_reserved_bytes", "tokens_per_second")
    keys = [key for key in wanted if any(key in pair.differences for pair in pairs)]
    figure, panels = canvas.new_figure(2, len(keys), 4.4, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
    for column, key in enumerate(keys):
        above, below = panels[0][column], panels[1][column]
        shown = [pair for pair in pairs if key in pair.differences]
        _both(above, shown, key)
        _difference(below, shown, key)
        above.set_title(units.name(key))
        canvas.counted(below, "sequence length, tokens")
    guessed = sum(pair.interpolated is not None for pair in pairs)
    if guessed:
        where = "hollow:" if len(pairs) <= canvas.FEW else f"at {guessed} of {len(pairs)} lengths one side is"
        notes = [*notes, f"{where} interpolated between its two neighbours"]
    return canvas.finish(figure, sheet, title, notes)


def _lines(effects: Effects, least: int) -> dict[tuple[str, str, str, int], list[Pair]]:
    """Group the pairs into lines by the configuration that both options share, the options, and the micro batch; keep
    lines of at least ``least`` pairs."""
    groups = grouped(effects.pairs, lambda pair: (pair.where, pair.base, pair.other, pair.micro))
    return {group: pairs for group, pairs in groups.items() if len(pairs) >= least}


def _both(axes: Any, pairs: Sequence[Pair], key: str) -> None:
    for side, color, marker in (("base", BASE, "o"), ("other", OTHER, "s")):
        tokens = [pair.tokens for pair in pairs]
        values = [_scaled(key, getattr(pair.differences[key], side).value) for pair in pairs]
        axes.plot(tokens, values, color=color, label=canvas.plain(getattr(pairs[0], side).replace(",", ", ")))
        if len(pairs) > canvas.FEW:
            continue
        for pair, value in zip(pairs, values, strict=True):
            fill = "white" if pair.interpolated == side else color
            axes.plot(pair.tokens, value, color=color, marker=marker, markerfacecolor=fill)
    axes.set_ylabel(_unit(key))
    canvas.thousands(axes.yaxis)
    canvas.from_zero([axes])


def _difference(axes: Any, pairs: Sequence[Pair], key: str) -> None:
    tokens = [pair.tokens for pair in pairs]
    differences = [pair.differences[key] for pair in pairs]
    noise = [_scaled(key, each.noise) for each in differences if each.noise is not None]
    if len(noise) == len(differences):
        axes.fill_between(
            tokens, [-each for each in noise], noise, color="#999999", alpha=0.3, linewidth=0, label="noise"
        )
    axes.axhline(0, color=OOM_COLOR, linewidth=0.8)
    marker = "o" if len(pairs) <= canvas.FEW else None
    values = [_scaled(key, each.absolute) for each in differences]
    axes.plot(tokens, values, color=OOM_COLOR, marker=marker, label="difference (second minus first)")
    axes.set_ylabel(f"difference, {_unit(key).removesuffix(' per GPU')}")
    canvas.thousands(axes.yaxis)


def _scaled(key: str, value: float) -> float:
    return value / GIB if key.endswith("_bytes") else value


def _unit(key: str) -> str:
    return "GiB per GPU" if key.endswith("_bytes") else "tokens/s"


RATES = {"iterations_per_second": "iterations/s", "tokens_per_second": "tokens/s, all GPUs"}

TITLES = {TOKENS: "sequence length", MICRO: "micro batch"}


def memory_over(sheet: Sheet, axis: str) -> Iterator[tuple[str, Figure]]:
    all_series = series_over(sheet, axis)
    figure, panels = canvas.new_figure(1, 2, sharey=True)
    for axes, key in zip(panels[0], (sheet.held, "peak_reserved_bytes"), strict=True):
        for series in all_series:
            _line(axes, sheet, series, [(position, *gib(sizes)) for position, *sizes in series.band(key)])
        axes.set_title(units.name(key))
        canvas.counted(axes, NAMES[axis])
    panels[0][0].set_ylabel("GiB per GPU")
    canvas.from_zero(panels[0], sheet.memory_gib)
    _mark_ooms(panels[0], sheet, all_series)
    several = any((run.config.get("hardware") or {}).get("gpus", 1) > 1 for run in sheet.runs)
    notes = ["line: mean over ranks; band: lowest to highest rank"] if several else []
    yield "", canvas.finish(figure, sheet, f"Peak memory over {TITLES[axis]}", notes)


def speed_over(sheet: Sheet, axis: str) -> Iterator[tuple[str, Figure]]:
    all_series = series_over(sheet, axis)
    if not any(series.band("tokens_per_second") for series in all_series):
        raise NothingToDraw(f"no run has a known speed{sheet.unknown_speed}")
    figure, panels = canvas.new_figure(1, 2)
    for axes, (key, name) in zip(panels[0], RATES.items(), strict=True):
        for series in all_series:
            _line(axes, sheet, series, series.band(key))
        axes.set_ylabel(name)
        canvas.thousands(axes.yaxis)
        canvas.counted(axes, NAMES[axis])
        canvas.from_zero([axes])
    _mark_ooms(panels[0], sheet, all_series)
    yield "", canvas.finish(figure, sheet, f"Speed over {TITLES[axis]}")


def _line(axes: Any, sheet: Sheet, series: Series, band: Sequence[Sequence[float]]) -> None:
    """Draw one line with its band: of each point its position, and the lowest, the mean and the highest value."""
    if not band:
        return
    look = sheet.styles[series.label]
    positions, low, middle, high = zip(*band, strict=True)
    axes.fill_between(positions, low, high, color=look.color, alpha=0.22, linewidth=0, rasterized=is_cloud(positions))
    marker = MARKERS[(MARKERS.index(look.marker) + series.turn) % len(MARKERS)]
    axes.plot(
        positions,
        middle,
        color=look.color,
        linestyle=DASHES[(DASHES.index(look.dash) + series.turn) % len(DASHES)],
        marker=marker if len(positions) <= canvas.FEW else None,
        linewidth=0.8 if is_cloud(positions) else 1.5,
        rasterized=is_cloud(positions),
        label=canvas.plain(series.name),
    )


def _mark_ooms(panels: Sequence[Any], sheet: Sheet, all_series: Sequence[Series]) -> None:
    for axes in panels:
        for series in all_series:
            for position in series.ooms:
                canvas.mark_oom(axes, position, sheet.styles[series.label].color)
    if any(series.ooms for series in all_series):
        panels[0].plot([], [], marker="X", markersize=7, color=OOM_COLOR, linestyle="none", label="out of GPU memory")
