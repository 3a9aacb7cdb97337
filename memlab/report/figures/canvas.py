"""Size, fonts, legend and saving of all figures, for print in a column of a page."""

import io
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from memlab.core.sizes import GIB
from memlab.files.disk import replacing
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
    "legend.fontsize": 8.5,
    "figure.constrained_layout.w_pad": 0.08,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.0,
    "svg.hashsalt": "memlab",  # equal figures give equal files
    "path.simplify_threshold": 0.3,
}

DPI = 160

WIDTH = 9.0
"""Width of a figure in inches."""

LINE = 0.19
"""Height of a line of the legend in inches."""

FEW = 40
"""Most points of a line with a marker on each point."""

OOM_COLOR = "#444444"


def new_figure(rows: int = 1, columns: int = 1, height: float = 3.4, **options: Any) -> tuple[Figure, Any]:
    """Make a figure and the two-dimensional array of its axes. ``height`` in inches, without the legend."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def finish(figure: Figure, sheet: Sheet, title: str, notes: Sequence[str] = ()) -> Figure:
    """Add the title, the options that all configurations share, notes, and one legend below the axes."""
    subtitle = "\n".join(
        wrapped(line) for line in (", ".join(filter(None, [sheet.name, " ".join(sheet.common)])), *notes)
    )
    figure.suptitle(f"{wrapped(title)}\n{subtitle}", fontsize=10.0, linespacing=1.4)
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
    figure.set_size_inches(width, height + LINE * (rows + subtitle.count("\n") + wrapped(title).count("\n") + 1))
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name``.png and ``name``.svg in ``folder``. Returns both paths."""
    stem = re.sub(r"[^A-Za-z0-9_.=-]+", "_", name)[:120].strip("_")
    png, svg = folder / f"{stem}.png", folder / f"{stem}.svg"
    pixels = io.BytesIO()
    figure.savefig(pixels, dpi=DPI, format="png")
    image = Image.open(pixels).convert("RGB").quantize(256)  # a third of the bytes, without a visible difference
    with replacing(png) as temporary:
        image.save(temporary, format="png", optimize=True)
    with replacing(svg) as temporary:
        figure.savefig(temporary, dpi=2 * DPI, format="svg", metadata={"Date": None})
    return [png, svg]


def style():
    """Return the context in which figures are made and saved."""
    return matplotlib.rc_context(RC)


def plain(text: str) -> str:
    """Escape text so that matplotlib does not read it as mathematics."""
    return text.replace("$", r"\$")


def gib(sizes: Sequence[float]) -> list[float]:
    return [size / GIB for size in sizes]


def thousands(axis: Any) -> None:
    """Format the numbers of an axis with thousands separators, without trailing zeros."""
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}")


def counted(axes: Any, name: str) -> None:
    """Set up an x axis of whole numbers."""
    axes.set_xlabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    thousands(axes.xaxis)


def from_zero(panels: Iterable[Any], memory_gib: float | None = None) -> None:
    """Give all panels the same y axis from zero.

    If the data come near the memory of a GPU, this memory is drawn as a line.
    """
    panels = list(panels)
    top = max((axes.dataLim.y1 for axes in panels if axes.has_data()), default=1.0) or 1.0
    near = memory_gib is not None and 0.6 * memory_gib < top <= 1.2 * memory_gib
    for axes in panels:
        if near:
            axes.axhline(memory_gib, color=OOM_COLOR, linewidth=0.9, linestyle=(0, (6, 3)), label="memory of one GPU")
        axes.set_ylim(0, 1.06 * max(top, memory_gib if near else 0))


def marker_size(points: Sequence[Any]) -> float:
    """Return the marker size in typographic points: large for few data points, small for a cloud."""
    return 6.0 if len(points) <= FEW else 1.8 if is_cloud(points) else 4.0


def is_cloud(points: Sequence[Any]) -> bool:
    """Return whether an SVG holds the points as an image: as shapes, so many would take a megabyte."""
    return len(points) > 10 * FEW


def mark_oom(axes: Any, position: float, color: str, label: str | None = None) -> None:
    """Draw a cross at the top of the panel for a run that ran out of GPU memory: its memory is not known."""
    look = {"marker": "X", "markersize": 7, "markeredgecolor": "white", "linestyle": "none", "zorder": 5}
    axes.plot(position, 0.97, color=color, label=label, transform=axes.get_xaxis_transform(), clip_on=False, **look)


def wrapped(text: str, width: int = 120) -> str:
    """Break text between words into lines of at most ``width`` characters."""
    return plain(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False))
