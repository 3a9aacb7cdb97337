"""Figure of memory against speed, with the Pareto front."""

from collections.abc import Iterable, Iterator

from matplotlib.figure import Figure

from memlab.analyse.identity import point_of
from memlab.analyse.run_view import RunView, peak
from memlab.core.sizes import GIB
from memlab.report.figures.canvas import (
    OOM_COLOR,
    finish,
    from_zero,
    is_cloud,
    marker_size,
    new_figure,
    plain,
    thousands,
)
from memlab.report.figures.sheet import NothingToDraw, Sheet

LABELLED = 8
"""Most points of the front with a label; more labels would cover one another."""


def pareto(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw reserved memory of the highest rank against tokens/s of all GPUs."""
    figure, panels = new_figure(1, 1, 4.0)
    axes = panels[0][0]
    drawn = []
    for label, members in sheet.configurations.items():
        points = [run for run in members if run.status == "ok" and _memory(run) and _speed(run)]
        drawn += points
        look = sheet.styles[label]
        marks = {"color": look.color, "marker": look.marker, "linestyle": "none", "markeredgewidth": 0, "alpha": 0.75}
        marks |= {"markersize": marker_size(points), "rasterized": is_cloud(points)}
        if points:
            x, y = [_memory(run) for run in points], [_speed(run) for run in points]
            axes.plot(x, y, label=plain(sheet.short(label)) or "runs", **marks)
    if not drawn:
        raise NothingToDraw("no run has both memory and speed")
    best = front(drawn)
    x, y = [_memory(run) for run in best], [_speed(run) for run in best]
    axes.step(x, y, where="post", color=OOM_COLOR, linewidth=1.0, label="front: no run is faster with less memory")
    for run in best[:: -(len(best) // LABELLED + 1)]:
        micro, tokens = point_of(run)
        where = (_memory(run), _speed(run))
        axes.annotate(
            f"{micro:,} x {tokens:,}", where, xytext=(-3, 5), textcoords="offset points", fontsize=7.5, ha="right"
        )
    axes.set_xlabel("peak reserved, GiB, highest rank")
    axes.set_ylabel("tokens/s, all GPUs")
    thousands(axes.yaxis)
    axes.set_xlim(0, 1.08 * max(map(_memory, drawn)))
    from_zero([axes])
    yield "", finish(figure, sheet, "Memory against speed", ["named: micro batch x tokens"])


def front(runs: Iterable[RunView]) -> list[RunView]:
    """Find the runs that no other run beats in both memory and speed, least memory first."""
    found: list[RunView] = []
    for run in sorted(runs, key=lambda run: (_memory(run), -_speed(run))):
        if not found or _speed(run) > _speed(found[-1]):
            found.append(run)
    return found


def _memory(run: RunView) -> float:
    return (peak(run, "peak_reserved_bytes") or 0) / GIB


def _speed(run: RunView) -> float:
    return run.summary.get("tokens_per_second") or 0.0
