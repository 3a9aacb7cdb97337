"""Figure of all ranks: the peaks of allocated and reserved memory of each rank in each phase, as heat maps."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from memlab.core.record import COMMAND_PHASES, Record
from memlab.core.sizes import GIB
from memlab.report.figures.canvas import finish, new_figure
from memlab.report.figures.explained.drawn_run import DrawnRun

QUANTITIES = {"peak_allocated_bytes": "peak allocated", "peak_reserved_bytes": "peak reserved"}

DARK = 0.75
"""Share of the highest value from which on a cell is so dark that its number is white."""

READABLE = 16
"""Most ranks whose cells have numbers."""


def over_ranks(run: DrawnRun) -> Figure:
    """Draw ranks x phases."""
    ranks = run.record.ranks
    phases = _phases(run.record)
    figure, panels = new_figure(1, 2, 1.6 + min(0.3 * len(ranks), 6.0), sharey=True)
    for axes, (key, name) in zip(panels[0], QUANTITIES.items(), strict=True):
        cells = np.array(
            [[rank["phases"].get(phase, {}).get(key, np.nan) for phase in phases] for rank in ranks], dtype=float
        )
        _draw(figure, axes, cells / GIB, len(ranks) <= READABLE)
        axes.set_title(f"{name}, GiB")
        names = [phase.replace("_", " ") for phase in phases]
        axes.set_xticks(range(len(phases)), names, fontsize=7, rotation=35, ha="right", rotation_mode="anchor")
    panels[0][0].set_ylabel("rank")
    panels[0][0].set_yticks(range(len(ranks)), [rank["rank"] for rank in ranks], fontsize=7)
    return finish(figure, run.sheet, "Memory of each rank in each phase", [run.view.source])


def _phases(record: Record) -> list[str]:
    names = dict.fromkeys(phase for rank in record.ranks for phase in rank["phases"])
    return sorted(names, key=lambda name: COMMAND_PHASES.index(name) if name in COMMAND_PHASES else len(COMMAND_PHASES))


def _draw(figure: Figure, axes: Any, cells: Any, has_numbers: bool) -> None:
    image = axes.imshow(cells, cmap="Blues", vmin=0, aspect="auto")
    figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    axes.grid(visible=False)
    if not has_numbers:
        return
    for row, column in np.argwhere(~np.isnan(cells)):
        value = cells[row, column]
        color = "white" if value > DARK * np.nanmax(cells) else "black"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=6.5, color=color)
