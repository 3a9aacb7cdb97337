"""Figure of memory by phase: a stacked bar per phase of memory that stays, that is freed, and that is unused."""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.identity import point_of, tokens_of
from memlab.analyse.run_view import RunView
from memlab.core.record import PHASES
from memlab.core.sizes import GIB
from memlab.report.figures.canvas import finish, from_zero, new_figure, wrapped
from memlab.report.figures.sheet import NothingToDraw, Sheet
from memlab.report.palette import OKABE_ITO

PARTS = (
    ("allocated at the end of the phase", OKABE_ITO[0][0], ""),
    ("allocated at its peak only", OKABE_ITO[5][0], ""),
    ("reserved beyond that", "#FFFFFF", "////"),
)

COLUMNS, MOST = 3, 9


def phases(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw the largest point with status ok of each configuration, for at most nine configurations."""
    chosen = {}
    for label, members in sheet.configurations.items():
        known = [run for run in members if run.status == "ok" and any(phase in run.phases for phase in PHASES)]
        if known:
            chosen[label] = max(known, key=tokens_of)
    if not chosen:
        raise NothingToDraw("no run has memory by phase")
    shown = list(chosen.items())[:MOST]
    rows = -(-len(shown) // COLUMNS)
    figure, panels = new_figure(rows, min(COLUMNS, len(shown)), 0.6 + 2.4 * rows, sharey=True)
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, (label, run) in zip(panels.flat, shown, strict=False):
        _bars(axes, run)
        micro, tokens = point_of(run)
        words = [wrapped(sheet.short(label), 42), f"batch {micro:,}, {tokens:,} tokens"]
        axes.set_title("\n".join(filter(None, words)), fontsize=8, loc="left")
    for row in panels:
        row[0].set_ylabel("GiB, highest rank")
    from_zero(panels.flat[: len(shown)])
    more = [f"{len(shown)} of {len(chosen)} configurations"] if len(chosen) > len(shown) else []
    yield "", finish(figure, sheet, "Memory by phase", [*more, "the largest point of each configuration"])


def stack(phase: dict[str, dict[str, int]]) -> list[float]:
    """Return the heights of :data:`PARTS` in bytes; their sum is the reserved peak."""
    end, allocated, reserved = (
        phase.get(key, {}).get("max", 0)
        for key in ("end_allocated_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
    )
    return [end, max(0, allocated - end), max(0, reserved - max(allocated, end))]


def _bars(axes: Any, run: RunView) -> None:
    found = run.phases
    names = [name for name in PHASES if name in found]
    heights: Sequence[Sequence[float]] = [stack(found[name]) for name in names]
    base = [0.0] * len(names)
    for part, (label, color, hatch) in enumerate(PARTS):
        sizes = [height[part] / GIB for height in heights]
        axes.bar(
            range(len(names)),
            sizes,
            bottom=base,
            color=color,
            hatch=hatch,
            edgecolor="#555555",
            linewidth=0.5,
            label=label,
        )
        base = [low + size for low, size in zip(base, sizes, strict=True)]
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names], fontsize=6.5)
    axes.grid(axis="x", visible=False)
