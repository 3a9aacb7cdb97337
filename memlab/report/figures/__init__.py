"""Figures for print as PNG and SVG: every kind of figure, for each model and machine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from memlab.analyse.effects import Effects
from memlab.analyse.identity import MICRO, TOKENS
from memlab.analyse.run_view import RunView
from memlab.report.figures import canvas
from memlab.report.figures.bars import cost, phases
from memlab.report.figures.over_axis import fit, memory_over, overlays, slices_overlay, speed_over
from memlab.report.figures.scatter import pareto, predicted_against_measured, reserved_against_allocated
from memlab.report.figures.sheet import NothingToDraw, Sheet, sheets
from memlab.report.figures.step_memory import step_memory

Kind = Callable[[Sheet], Iterator[tuple[str, Figure]]]
"""Function that yields figures, each with its part of the file name; raises :class:`NothingToDraw`."""

KINDS: dict[str, Kind] = {
    "memory_over_seq_len": partial(memory_over, axis=TOKENS),
    "memory_over_batch": partial(memory_over, axis=MICRO),
    "reserved_against_allocated": reserved_against_allocated,
    "speed_over_seq_len": partial(speed_over, axis=TOKENS),
    "speed_over_batch": partial(speed_over, axis=MICRO),
    "overlay": overlays,
    "phases": phases,
    "step_memory": step_memory,
    "predicted_against_measured": predicted_against_measured,
    "fit": fit,
    "cost": cost,
    "pareto": pareto,
}


def draw(runs: Sequence[RunView], output: Path, kinds: Iterable[str]) -> Iterator[tuple[str, list[Path] | str]]:
    """Write the figures of these kinds. Yields each kind with the files written, or with the reason for none."""
    for sheet in sheets(runs):
        for kind in kinds:
            yield from _draw(KINDS[kind](sheet), kind, sheet, output)


def draw_slices(runs: Sequence[RunView], effects: Effects, output: Path) -> Iterator[tuple[str, list[Path] | str]]:
    """Write the overlay of the two slices that ``effects`` compares."""
    sheet = next(sheets(runs))
    yield from _draw(slices_overlay(sheet, effects), "slices", sheet, output)


def _draw(found: Iterator[tuple[str, Figure]], kind: str, sheet: Sheet, output: Path):
    try:
        with canvas.style():
            for part, figure in found:
                name = "-".join(word for word in (kind, part, "" if sheet.alone else sheet.name) if word)
                yield kind, canvas.save(figure, output, name)
    except NothingToDraw as reason:
        yield kind, f"{sheet.name}: {reason}"
