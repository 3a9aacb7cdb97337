"""What all figures share: their input, a sheet of runs, and their size, fonts, legend and files, for print in a
column of a page."""

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from memlab.analyse.identity import configurations, subject_of
from memlab.analyse.quantities import held_quantity
from memlab.analyse.run_view import RunView, value_at
from memlab.core.grouping import grouped
from memlab.core.sizes import GIB
from memlab.files.disk import replacing
from memlab.report import units
from memlab.report.palette import Style, styles


class NothingToDraw(Exception):
    """No run has the data that a figure shows; the message says which data are missing."""


@dataclass(frozen=True)
class Sheet:
    """The runs of one model on one kind of machine, called ``name``; ``alone`` if it is the report's only sheet.

    ``styles`` are shared by the whole report, so that a configuration looks the same on every sheet.
    """

    name: str
    alone: bool
    configurations: dict[str, list[RunView]]
    styles: dict[str, Style]

    @property
    def runs(self) -> list[RunView]:
        return [run for members in self.configurations.values() for run in members]

    def having(self, has: Callable[[RunView], Any], reason: str) -> dict[str, list[RunView]]:
        """Return label -> the runs that fit, last and have what a figure shows; labels without such runs are left out.

        Raises :class:`NothingToDraw` with the ``reason`` if no run has it.
        """
        fitting = {label: [run for run in runs if run.fits_and_lasts] for label, runs in self.configurations.items()}
        found = {label: own for label, runs in fitting.items() if (own := list(filter(has, runs)))}
        if not found:
            raise NothingToDraw(reason)
        return found

    @property
    def common(self) -> list[str]:
        """Words that all labels of the sheet share: the title has them once."""
        each = [label.split() for label in self.configurations]
        return [word for word in each[0] if all(word in words for words in each) and not word.startswith("model=")]

    def short(self, label: str) -> str:
        """Return the label without the words that all labels of this sheet share; empty for the only one."""
        return " ".join(word for word in label.split() if word not in self.common and not word.startswith("model="))

    def look(self, words: str) -> Style:
        """Return the style of the first configuration whose label has all these words.

        ``words`` may be a label of fewer axes; without a match, the first configuration's style is returned.
        """
        wanted = set(words.split())
        labels = [label for label in self.configurations if wanted <= set(label.split())] or list(self.configurations)
        return self.styles[labels[0]]

    @property
    def held(self) -> str:
        """Figure for memory in live tensors: allocated, or active if allocated was not measured."""
        return held_quantity(self.runs)

    @property
    def unknown_speed(self) -> str:
        """Why speeds are not known where they are only bounds, for a message; empty otherwise."""
        bases = (run.basis for run in self.runs if run.summary.get("step_seconds"))
        return units.not_known("; speed", bases)

    @property
    def memory_gib(self) -> float | None:
        """Memory of one GPU; ``None`` if it differs between runs."""
        found = {value_at(run.config, "hardware.memory_gib") for run in self.runs}
        return found.pop() if len(found) == 1 else None


def sheets(runs: Sequence[RunView]) -> Iterator[Sheet]:
    """Yield one sheet for each model and machine: memory of different models must not share an axis."""
    named = configurations(runs)
    looks = styles(named)
    families = grouped(named, lambda label: subject_of(named[label][0]))
    for family, labels in families.items():
        yield Sheet(family, len(families) == 1, {label: named[label] for label in labels}, looks)


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
    folder.mkdir(parents=True, exist_ok=True)
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
    return matplotlib.style.context(Path(__file__).with_name("memlab.mplstyle"))


def plain(text: str) -> str:
    """Escape text so that matplotlib does not read it as mathematics."""
    return text.replace("$", r"\$")


def gib(sizes: Sequence[float]) -> list[float]:
    return [size / GIB for size in sizes]


def stack_bars(
    axes: Any, at: Sequence[float], layers: Iterable[tuple[str, str, str, Sequence[float]]], **look: Any
) -> None:
    """Draw bars at these positions, one layer on the other. ``layers``: name, color, hatch and sizes in bytes."""
    base = [0.0] * len(at)
    for name, color, hatch, sizes in layers:
        heights = gib(sizes)
        axes.bar(at, heights, bottom=base, color=color, hatch=hatch, label=name, edgecolor="#555555", **look)
        base = [low + height for low, height in zip(base, heights, strict=True)]


def new_panels(
    shown: Mapping[str, Any] | Sequence[Any], most: int, columns: int, heights: tuple[float, float], **options: Any
) -> tuple[Figure, list[Any], list[str]]:
    """Make a figure with a panel for each of several configurations, at most ``most``.

    ``heights``: of the figure without a row of panels, and of a row, in inches. Also returns the axes, and a note if
    there are more configurations.
    """
    count = min(len(shown), most)
    rows = -(-count // columns)
    figure, panels = new_figure(rows, min(columns, count), heights[0] + heights[1] * rows, **options)
    for axes in panels.flat[count:]:
        axes.set_visible(False)
    notes = [f"{most} of {len(shown)} configurations"] if len(shown) > most else []
    return figure, list(panels.flat[:count]), notes


def entitle(axes: Any, label: str, width: int, *lines: str) -> None:
    """Write the label of a configuration, wrapped at ``width``, and these lines above a panel."""
    axes.set_title("\n".join(filter(None, (wrapped(label, width), *lines))), fontsize=8, loc="left")


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
    line = memory_gib if memory_gib is not None and 0.6 * memory_gib < top <= 1.2 * memory_gib else 0
    for axes in panels:
        if line:
            axes.axhline(line, color=OOM_COLOR, linewidth=0.9, linestyle=(0, (6, 3)), label="memory of one GPU")
        axes.set_ylim(0, 1.06 * max(top, line))


def cloud(look: Style, points: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return how points without a line between them are drawn: large if they are few, small in a cloud."""
    size = 6.0 if len(points) <= FEW else 1.8 if is_cloud(points) else 4.0
    marks = {"color": look.color, "marker": look.marker, "markersize": size, "markeredgewidth": 0}
    return {**marks, "linestyle": "none", "rasterized": is_cloud(points), **more}


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
