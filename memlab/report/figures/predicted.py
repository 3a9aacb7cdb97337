"""Figure of predicted against measured memory: a point per pair, the line of equality, and a band of 5 %."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.effects import Pair, effects_by
from memlab.analyse.identity import MODE
from memlab.core.sizes import GIB
from memlab.report import units
from memlab.report.figures.canvas import OOM_COLOR, finish, from_zero, new_figure, plain
from memlab.report.figures.sheet import NothingToDraw, Sheet

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
