"""Size, type and legend of all figures: made for print, in a column of a page."""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from memlab.machine import GIB
from memlab.report.figures.sheet import Sheet

RC = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.0,
    "svg.hashsalt": "memlab",  # the same figure is the same file
    "path.simplify_threshold": 0.3,
}

DPI = 160

WIDTH = 9.0
"""Inches."""

LINE = 0.19
"""Inches of height that a line of the legend takes."""

FEW = 40
"""Points of a line up to which each has a marker."""

OOM_COLOR = "#444444"


def new_figure(rows: int = 1, columns: int = 1, height: float = 3.4, **options: Any) -> tuple[Figure, Any]:
    """A figure and the array of its axes (always two-dimensional). ``height`` in inches, without the legend."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def finish(figure: Figure, sheet: Sheet, title: str, notes: Sequence[str] = ()) -> Figure:
    """Title, what all configurations share, notes, and one legend below the axes, where it covers no data."""
    under = [_wrapped(" ".join([sheet.name, *sheet.common]).strip()), *map(_wrapped, notes)]
    subtitle = "\n".join(line for line in under if line)
    figure.suptitle(f"{title}\n{subtitle}" if subtitle else title, fontsize=10.5, linespacing=1.4)
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    rows = 0
    if handles:
        columns = max(1, min(len(handles), 4, 110 // (max(map(len, handles)) + 8)))
        rows = math.ceil(len(handles) / columns)
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + LINE * (rows + subtitle.count("\n") + 1))
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """``name``.png and ``name``.svg in ``folder``."""
    stem = re.sub(r"[^A-Za-z0-9_.=-]+", "_", name)[:120].strip("_")
    written = []
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        path = folder / f"{stem}.{suffix}"
        figure.savefig(path, dpi=DPI, metadata=metadata)
        written.append(path)
    return written


def style():
    """The context in which figures are made and saved."""
    return matplotlib.rc_context(RC)


def plain(text: str) -> str:
    """Text that matplotlib must not take for mathematics."""
    return text.replace("$", r"\$")


def gib(sizes: Sequence[float]) -> list[float]:
    return [size / GIB for size in sizes]


def counted(axes: Any, name: str) -> None:
    """An x axis of whole numbers."""
    axes.set_xlabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def from_zero(panels: Iterable[Any], memory_gib: float | None = None) -> None:
    """One y axis from zero for all panels, up to the memory of a GPU where the data come near it, which is a line."""
    panels = list(panels)
    top = max((axes.dataLim.y1 for axes in panels if axes.has_data()), default=1.0) or 1.0
    near = memory_gib is not None and 0.6 * memory_gib < top <= 1.2 * memory_gib
    for axes in panels:
        if near:
            axes.axhline(memory_gib, color=OOM_COLOR, linewidth=0.9, linestyle=(0, (6, 3)), label="memory of one GPU")
        axes.set_ylim(0, 1.06 * max(top, memory_gib if near else 0))


def _wrapped(text: str, width: int = 120) -> str:
    lines = [""]
    for word in plain(text).split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
