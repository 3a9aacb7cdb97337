"""Figure of all measured points of all models: predicted against measured memory."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from memlab.accuracy.errors import Judged, by, errors_of
from memlab.core.sizes import GIB
from memlab.report import units
from memlab.report.figures import canvas
from memlab.report.palette import styles

BAND = 0.05

PANELS = {"allocated": "peak allocated", "reserved": "peak reserved", "after_init": "allocated after engine init"}


def draw_accuracy(points: Sequence[Judged], folder: Path, name: str = "predicted_against_measured") -> list[Path]:
    """Write PNG and SVG with a panel for each memory figure and a colour for each model and number of GPUs."""
    with canvas.style():
        return canvas.save(_figure(points), folder, name)


def _figure(points: Sequence[Judged]) -> Figure:
    shown = {figure: [point for point in points if figure in point.errors] for figure in PANELS}
    shown = {figure: some for figure, some in shown.items() if some}
    figure, panels = canvas.new_figure(1, len(shown), height=4.0)
    looks = styles(sorted({_label(point) for point in points}))
    for axes, (key, some) in zip(panels[0], shown.items(), strict=True):
        for label, members in sorted(by(some, _label).items()):
            measured = [point.measured_bytes[key] / GIB for point in members]
            predicted = [each * (1 + point.errors[key]) for each, point in zip(measured, members, strict=True)]
            marks = {"color": looks[label].color, "marker": looks[label].marker, "linestyle": "none", "alpha": 0.8}
            axes.plot(measured, predicted, label=canvas.plain(label), **marks)
        found = errors_of(some, key)
        errors = f"error {units.percent(found.median, 2)} median, {_signed(found.worst)} worst"
        axes.set_title(f"{PANELS[key]}: {found.n} points\n{errors}")
        _equality(axes)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.suptitle(
        f"Predicted against measured memory (grey: within {units.percent(BAND)} of the measurement)", fontsize=10.0
    )
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _signed(error: float) -> str:
    return units.with_sign(error, units.percent(abs(error), 2))


def _label(point: Judged) -> str:
    return f"{point.choices['model']}, {point.gpus} GPU{'s' * (point.gpus > 1)}"


def _equality(axes) -> None:
    low, high = 0.9 * axes.dataLim.x0, 1.1 * axes.dataLim.x1
    edges = [low, high]
    axes.fill_between(
        edges,
        [each * (1 - BAND) for each in edges],
        [each * (1 + BAND) for each in edges],
        color="#999999",
        alpha=0.25,
        linewidth=0,
    )
    axes.plot(edges, edges, color=canvas.OOM_COLOR, linewidth=0.9, label="predicted = measured")
    axes.set(xscale="log", yscale="log", xlim=edges, ylim=edges)
    axes.set_xlabel("measured, GiB, highest rank")
    axes.set_ylabel("predicted, GiB, highest rank")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else ""))
