"""Figures for print as PNG and SVG: every kind of figure, for each model and machine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from memlab.analyse.effects import Effects
from memlab.analyse.identity import MICRO, TOKENS
from memlab.analyse.run_view import RunView
from memlab.report.figures import by_point, canvas, over_axis
from memlab.report.figures.canvas import NothingToDraw, Sheet, sheets

Kind = Callable[[Sheet], Iterator[tuple[str, Figure]]]
"""Function that yields figures, each with its part of the file name; raises :class:`NothingToDraw`."""

KINDS: dict[str, Kind] = {
    "memory_over_seq_len": partial(over_axis.memory_over, axis=TOKENS),
    "memory_over_batch": partial(over_axis.memory_over, axis=MICRO),
    "reserved_against_allocated": by_point.reserved_against_allocated,
    "speed_over_seq_len": partial(over_axis.speed_over, axis=TOKENS),
    "speed_over_batch": partial(over_axis.speed_over, axis=MICRO),
    "overlay": over_axis.overlays,
    "phases": by_point.phases,
    "step_memory": by_point.step_memory,
    "predicted_against_measured": by_point.predicted_against_measured,
    "fit": over_axis.fit,
    "cost": by_point.cost,
    "pareto": by_point.pareto,
}


def draw(runs: Sequence[RunView], output: Path, kinds: Iterable[str]) -> Iterator[tuple[str, list[Path] | str]]:
    """Write the figures of these kinds. Yields each kind with the files written, or with the reason for none."""
    for sheet in sheets(runs):
        for kind in kinds:
            yield from _draw(KINDS[kind](sheet), kind, sheet, output)


def draw_slices(runs: Sequence[RunView], effects: Effects, output: Path) -> Iterator[tuple[str, list[Path] | str]]:
    """Write the overlay of the two slices that ``effects`` compares."""
    sheet = next(sheets(runs))
    yield from _draw(over_axis.slices_overlay(sheet, effects), "slices", sheet, output)


def _draw(found: Iterator[tuple[str, Figure]], kind: str, sheet: Sheet, output: Path):
    try:
        with canvas.style():
            for part, figure in found:
                name = "-".join(word for word in (kind, part, "" if sheet.alone else sheet.name) if word)
                yield kind, canvas.save(figure, output, name)
    except NothingToDraw as reason:
        yield kind, f"{sheet.name}: {reason}"
