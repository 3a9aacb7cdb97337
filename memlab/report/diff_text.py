"""A comparison of runs, and the effects of an axis, in a terminal."""

from collections.abc import Sequence

from rich.console import Console

from memlab.analyse.diff import Change, Comparison
from memlab.analyse.effects import Effects, Pair
from memlab.analyse.figures import Difference
from memlab.report import units
from memlab.report.text import SHOWN, grid
from memlab.terminal import safe

HEADLINE = ("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "samples_per_second")
"""Figures of an effect that are shown pair by pair; the range is shown for all."""


def show_comparison(comparison: Comparison, out: Console) -> None:
    """Warnings first, then what differs, then what it did."""
    show_warnings(comparison.warnings, out)
    names = [chr(ord("A") + index) for index in range(len(comparison.runs))]
    for name, run in zip(names, comparison.runs, strict=True):
        out.print(f"{name}  {safe(run.run_id)}  ({safe(run.status)})", soft_wrap=True)
    parts = {
        "Options": comparison.choices,
        "Values": comparison.values,
        "DeepSpeed JSON": comparison.deepspeed,
        "Environment": comparison.environment,
    }
    for title, changes in parts.items():
        if changes:
            out.print(grid(title, ["key", *names], map(_change_row, changes), 1 + len(names)))
    if not any(parts.values()):
        out.print("Nothing differs in the configuration.")
    if comparison.figures:
        out.print(_figures(comparison, names))


def show_warnings(warnings: Sequence[str], out: Console) -> None:
    for warning in warnings:
        out.print(f"! {safe(warning)}", style="yellow", soft_wrap=True)


def show_effects(effects: Effects, out: Console) -> None:
    """Warnings, the range over all pairs, the pairs, and who has no partner."""
    show_warnings(effects.warnings, out)
    rows = [
        (
            f"{each.base} -> {each.other}",
            units.name(each.key),
            units.percent(each.lowest),
            units.percent(each.median),
            units.percent(each.highest),
            each.pairs,
            each.within_noise if each.unknown_noise < each.pairs else "unknown",
        )
        for each in effects.ranges
    ]
    columns = [effects.by, "figure", "lowest", "median", "highest", "pairs", "within noise"]
    out.print(grid(f"Effect of {effects.by} over all pairs", columns, rows, 2))
    _show_pairs(effects.pairs, out)
    _show_unpaired(effects, out)


def _show_pairs(pairs: Sequence[Pair], out: Console) -> None:
    keys = [key for key in HEADLINE if any(key in pair.differences for pair in pairs)]
    rows = [
        (
            pair.where,
            f"{pair.base} -> {pair.other}",
            pair.micro,
            pair.tokens,
            *(_effect(key, pair.differences.get(key)) for key in keys),
            {"base": f"{pair.base} interpolated", "other": f"{pair.other} interpolated", None: ""}[pair.interpolated],
        )
        for pair in pairs[:SHOWN]
    ]
    columns = ["configuration", "from -> to", "batch", "tokens", *(units.name(key) for key in keys), "note"]
    out.print(grid(f"{len(pairs):,} pairs; * is within the noise", columns, rows, 2))
    if len(pairs) > SHOWN:
        out.print(f"{len(pairs) - SHOWN:,} more pairs")


def _show_unpaired(effects: Effects, out: Console) -> None:
    if effects.unpaired:
        out.print(f"{len(effects.unpaired)} without a partner:")
        for run_id, reason in effects.unpaired[:SHOWN]:
            out.print(f"  {safe(run_id)}: {safe(reason)}", soft_wrap=True)
        if len(effects.unpaired) > SHOWN:
            out.print(f"  and {len(effects.unpaired) - SHOWN:,} more")


def _change_row(change: Change) -> list[str]:
    return [change.key, *("-" if value is None else str(value) for value in change.values)]


def _figures(comparison: Comparison, names: Sequence[str]):
    columns = ["figure (largest rank)", names[0]]
    for name in names[1:]:
        columns += [name, f"{name} - {names[0]}", "%", "noise"]
    rows = []
    for row in comparison.figures:
        first, *others = row.figures
        cells = [units.name(row.key), units.figure(row.key, first and first.value)]
        for found, difference in zip(others, row.differences, strict=True):
            cells += [units.figure(row.key, found and found.value), *_difference(row.key, difference)]
        rows.append(cells)
    return grid("What it did", columns, rows)


def _difference(key: str, difference: Difference | None) -> tuple[str, str, str]:
    if difference is None:
        return "-", "-", "-"
    noise = "unknown" if difference.noise is None else units.figure(key, difference.noise)
    verdict = " (within it)" if difference.within_noise else ""
    return units.change(key, difference.absolute), units.percent(difference.relative), noise + verdict


def _effect(key: str, difference: Difference | None) -> str:
    if difference is None:
        return "-"
    star = " *" if difference.within_noise else ""
    return f"{units.change(key, difference.absolute)} ({units.percent(difference.relative)}){star}"
