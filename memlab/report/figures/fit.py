"""Figure of the fitted line or hinge of memory over tokens, with its equation and the end of the flat part."""

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from memlab.analyse.fit import Fit, fit_all
from memlab.analyse.identity import configurations
from memlab.core.sizes import GIB
from memlab.report import units
from memlab.report.figures.canvas import (
    OOM_COLOR,
    counted,
    finish,
    from_zero,
    is_cloud,
    mark_oom,
    marker_size,
    new_figure,
    wrapped,
)
from memlab.report.figures.sheet import NothingToDraw, Sheet
from memlab.report.fit_text import equation
from memlab.report.palette import Style

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
