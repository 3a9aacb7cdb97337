"""Figure of the cost of a million tokens in each configuration."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from memlab.analyse.identity import point_of
from memlab.report.figures.canvas import finish, new_figure, wrapped
from memlab.report.figures.sheet import NothingToDraw, Sheet

KEY = "usd_per_million_tokens"


def cost(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw a bar for the cheapest point of each configuration, cheapest first, and a tick for every other point."""
    priced = {}
    for label, members in sheet.configurations.items():
        points = [run for run in members if run.status == "ok" and run.summary.get(KEY)]
        if points:
            priced[label] = sorted(points, key=lambda run: run.summary[KEY])
    if not priced:
        raise NothingToDraw("no run has a price and a speed (hardware.usd_per_hour)")
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
