"""Bar figures: memory by phase (what stays, is freed, is unused), and the cost of a million tokens."""

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

KEY = "usd_per_million_tokens"


def cost(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw a bar for the cheapest point of each configuration, cheapest first, and a tick for every other point."""
    priced = {}
    for label, members in sheet.configurations.items():
        points = [run for run in members if run.fits_and_lasts and run.comparable(KEY)]
        if points:
            priced[label] = sorted(points, key=lambda run: run.summary[KEY])
    if not priced:
        raise NothingToDraw(
            f"no run has a price and a known speed{sheet.unknown_speed or ' (hardware.usd_per_gpu_hour)'}"
        )
    ordered = sorted(priced, key=lambda label: priced[label][0].summary[KEY])
    figure, panels = new_figure(1, 1, 1.0 + 0.42 * len(ordered))
    axes = panels[0][0]
    right = 1.5 * max(priced[label][0].summary[KEY] for label in ordered)
    for place, label in enumerate(ordered):
        costs = [run.summary[KEY] for run in priced[label]]
        axes.barh(place, costs[0], color=sheet.styles[label].color, height=0.62)
        inside = [each for each in costs[1:] if each < right]
        axes.plot(inside, [place] * len(inside), "|", color="#333333", markersize=9, alpha=0.6)
        micro, tokens = point_of(priced[label][0])
        # The caption is right of the axes, so no bar or tick covers it.
        axes.text(
            1.01, place, f"\\${costs[0]:,.3g}  (batch {micro:,}, {tokens:,} tokens)", fontsize=8, va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.set_yticks(
        range(len(ordered)), [wrapped(sheet.short(label), 44) or "all runs" for label in ordered], fontsize=8
    )
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, right)
    axes.set_xlabel("USD per million tokens")
    note = "bar: the cheapest point, named on the right; ticks: the other points within the axis"
    yield "", finish(figure, sheet, "Cost of each configuration", [note])


PARTS = (
    ("allocated at the end of the phase", OKABE_ITO[0][0], ""),
    ("allocated at its peak only", OKABE_ITO[5][0], ""),
    ("reserved beyond that", "#FFFFFF", "////"),
)

COLUMNS, MOST = 3, 9


def phases(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw the largest point of each configuration, for at most nine configurations."""
    chosen = {}
    for label, members in sheet.configurations.items():
        known = [run for run in members if run.fits_and_lasts and any(phase in run.phases for phase in PHASES)]
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
