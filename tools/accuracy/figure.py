"""Figure of all measured points of all models: the error of the predicted memory over the measured memory."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from memlab.core.grouping import grouped
from memlab.report import units
from memlab.report.figures import canvas
from memlab.report.palette import styles
from tools.accuracy.errors import QUANTITIES, Judged, errors_of

BAND = 0.05

PANELS = ("allocated", "reserved", "after_init")


def draw_accuracy(points: Sequence[Judged], folder: Path) -> list[Path]:
    """Write PNG and SVG with a panel for each memory figure and a colour for each number of GPUs."""
    with canvas.style():
        return canvas.save(_figure(points), folder, "predicted_against_measured")


def _figure(points: Sequence[Judged]) -> Figure:
    shown = {figure: some for figure in PANELS if (some := [point for point in points if figure in point.errors])}
    figure, panels = canvas.new_figure(1, len(shown), height=3.6, sharey=True)
    numbers = sorted({point.gpus for point in points})
    looks = dict(zip(numbers, styles(map(str, numbers)).values(), strict=True))
    for axes, (key, some) in zip(panels[0], shown.items(), strict=True):
        axes.axhspan(-100 * BAND, 100 * BAND, color="#999999", alpha=0.18, linewidth=0)
        axes.axhline(0, color=canvas.OOM_COLOR, linewidth=0.9)
        for gpus, members in sorted(grouped(some, lambda point: point.gpus).items()):
            measured = canvas.gib([point.measured_bytes[key] for point in members])
            off = [100 * point.errors[key] for point in members]
            marks = {"color": looks[gpus].color, "marker": looks[gpus].marker, "linestyle": "none", "alpha": 0.6}
            axes.plot(measured, off, label=units.counted(gpus, "GPU"), markersize=4, **marks)
        found = errors_of(some, key)
        assert found is not None  # shown are quantities that some points have
        worst = units.with_sign(found.worst, units.percent(abs(found.worst), 2))
        errors = f"error {units.percent(found.median, 2)} median, {worst} worst"
        axes.set_title(f"{QUANTITIES[key]}: {found.n} points\n{errors}", fontsize=9.0)
        axes.set(xscale="log", xlabel="measured, GiB, highest rank")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda gib, _: f"{gib:g}" if f"{gib:.0e}"[0] in "25" else "")
    panels[0][0].set_ylabel("predicted against measured, %")
    panels[0][0].yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    figure.suptitle(
        f"Predicted against measured memory (grey: within {units.percent(BAND)} of the measurement)", fontsize=10.0
    )
    handles = {
        label: handle for axes in panels[0] for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles))
    return figure
