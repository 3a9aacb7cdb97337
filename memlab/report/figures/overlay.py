"""Figures of two options of an axis, or of any two slices, with the difference below."""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.effects import Effects, Pair, effects_by
from memlab.analyse.identity import differing_axes
from memlab.core.sizes import GIB
from memlab.report import units
from memlab.report.figures.canvas import FEW, OOM_COLOR, counted, finish, from_zero, new_figure, plain, thousands
from memlab.report.figures.sheet import NothingToDraw, Sheet
from memlab.report.palette import OKABE_ITO

BASE, OTHER = OKABE_ITO[0][0], OKABE_ITO[1][0]
"""Fixed colours: the two lines are options, and an option may have several configurations."""

Group = tuple[str, str, str, int]
"""Configuration shared by both options, base option, other option, micro batch."""


def overlays(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw each two options of each axis, for every configuration with three or more sequence lengths of both."""
    drawn = 0
    for axis in differing_axes(sheet.runs):
        if axis in ("seq_len", "batch"):
            continue
        for number, (group, pairs) in enumerate(_lines(effects_by(sheet.runs, axis), 3).items(), 1):
            drawn += 1
            where, base, other, micro = group
            title = f"{axis}: {base} and {other}"
            words = [word for word in sheet.short(where).split() if not word.startswith(f"{axis}=")]
            note = ", ".join(filter(None, [" ".join(words), f"batch {micro}"]))
            yield f"{axis}-{number}", overlay(sheet, pairs, title, [note])
    if not drawn:
        raise NothingToDraw("no two options of an axis have three sequence lengths in common")


def slices_overlay(sheet: Sheet, effects: Effects) -> Iterator[tuple[str, Figure]]:
    """Draw two slices of any kind. Warnings about other differences go above the figure."""
    groups = _lines(effects, 2)
    if not groups:
        raise NothingToDraw("the slices do not share two sequence lengths at one batch")
    for (_, base, other, micro), pairs in groups.items():
        yield (
            f"batch-{micro}",
            overlay(sheet, pairs, f"{base} and {other}".replace(",", ", "), [f"batch {micro}", *effects.warnings]),
        )


def overlay(sheet: Sheet, pairs: Sequence[Pair], title: str, notes: Sequence[str]) -> Figure:
    """Draw live tensors, reserved memory and speed of both sides, with the difference and its noise below each."""
    keys = [key for key in (sheet.held, "peak_reserved_bytes", "tokens_per_second") if _has(pairs, key)]
    figure, panels = new_figure(2, len(keys), 4.4, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
    for column, key in enumerate(keys):
        above, below = panels[0][column], panels[1][column]
        shown = [pair for pair in pairs if key in pair.differences]
        _both(above, shown, key)
        _difference(below, shown, key)
        above.set_title(units.name(key))
        counted(below, "sequence length, tokens")
    guessed = sum(pair.interpolated is not None for pair in pairs)
    if guessed:
        where = "hollow:" if len(pairs) <= FEW else f"at {guessed} of {len(pairs)} lengths one side is"
        notes = [*notes, f"{where} interpolated between its two neighbours"]
    return finish(figure, sheet, title, notes)


def _lines(effects: Effects, least: int) -> dict[Group, list[Pair]]:
    """Group the pairs into lines, and keep lines of at least ``least`` pairs."""
    groups: dict[Group, list[Pair]] = {}
    for pair in effects.pairs:
        groups.setdefault((pair.where, pair.base, pair.other, pair.micro), []).append(pair)
    return {group: pairs for group, pairs in groups.items() if len(pairs) >= least}


def _has(pairs: Sequence[Pair], key: str) -> bool:
    return any(key in pair.differences for pair in pairs)


def _both(axes: Any, pairs: Sequence[Pair], key: str) -> None:
    for side, color, marker in (("base", BASE, "o"), ("other", OTHER, "s")):
        tokens = [pair.tokens for pair in pairs]
        values = [_scaled(key, getattr(pair.differences[key], side).value) for pair in pairs]
        axes.plot(tokens, values, color=color, label=plain(getattr(pairs[0], side).replace(",", ", ")))
        if len(pairs) > FEW:
            continue
        for pair, value in zip(pairs, values, strict=True):
            fill = "white" if pair.interpolated == side else color
            axes.plot(pair.tokens, value, color=color, marker=marker, markerfacecolor=fill)
    axes.set_ylabel(_unit(key))
    thousands(axes.yaxis)
    from_zero([axes])


def _difference(axes: Any, pairs: Sequence[Pair], key: str) -> None:
    tokens = [pair.tokens for pair in pairs]
    differences = [pair.differences[key] for pair in pairs]
    if all(each.noise is not None for each in differences):
        noise = [_scaled(key, each.noise) for each in differences]
        axes.fill_between(
            tokens, [-each for each in noise], noise, color="#999999", alpha=0.3, linewidth=0, label="noise"
        )
    axes.axhline(0, color=OOM_COLOR, linewidth=0.8)
    marker = "o" if len(pairs) <= FEW else None
    values = [_scaled(key, each.absolute) for each in differences]
    axes.plot(tokens, values, color=OOM_COLOR, marker=marker, label="difference (second minus first)")
    axes.set_ylabel(f"difference, {_unit(key).removesuffix(' per GPU')}")
    thousands(axes.yaxis)


def _scaled(key: str, value: float) -> float:
    return value / GIB if key.endswith("_bytes") else value


def _unit(key: str) -> str:
    return "GiB per GPU" if key.endswith("_bytes") else "tokens/s"
