"""Terminal output of a comparison of runs."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from memlab.analyse.diff import PLANNED, ChangedKey, Comparison, QuantityRow
from memlab.analyse.identity import COMMAND
from memlab.analyse.quantities import Difference, Quantity
from memlab.analyse.run_view import RunView
from memlab.core.basis import is_rate
from memlab.core.record import DOES_NOT_LAST
from memlab.report import units
from memlab.report.terminal_table import show_table
from memlab.report.text import say

MAIN = ("peak_allocated_bytes", "peak_reserved_bytes", "host_peak_bytes", "step_seconds", "usd_per_million_tokens")
"""Quantities that are always shown. Other quantities are shown if they changed by more than the noise."""

FOLLOWING = ("device_used_bytes", "process_used_bytes", "iterations_per_second", "samples_per_second")
"""Quantities that follow from reserved memory or the step time."""

DIFFERENCE_DIGITS = 3
"""Significant digits of a difference of speeds and of its noise. Differences of memory have the sizes' decimals."""

STAR = " *"
"""Mark after a quantity that is within the noise."""

ANSWERED = {
    "peak_reserved_bytes": ("of reserved memory", "reserved memory"),
    "step_seconds": ("a step", "step time"),
    "usd_per_million_tokens": ("a million tokens", "price"),
}
"""Quantities in the first sentence: words after a value, and the name of the quantity."""


def show_comparison(comparison: Comparison, out: Console, all_quantities: bool = False) -> None:
    """Print the answer, warnings, what differs, the main quantities, and those that changed by more than the noise."""
    say(comparison_answer(comparison), out, "bold")
    show_warnings(comparison.warnings, out)
    names = letters(comparison.runs)
    for name, run in zip(names, comparison.runs, strict=True):
        say(f"{name}  {run.run_id}  ({run.ending})", out)
    parts = {
        "Options": comparison.choices,
        "Values": comparison.values,
        "DeepSpeed JSON": comparison.deepspeed,
        "TrainingArguments": comparison.training_args,
        "Environment": comparison.environment,
    }
    for title, changes in parts.items():
        if rows := [row for change in changes if (row := _change_row(change))]:
            show_table(out, title, ["key", *names], rows, left=1 + len(names), always=names)
    for place, name in enumerate(names[1:]):
        _show_quantities(comparison.quantities, place, names[0], name, out, all_quantities)


def comparison_answer(comparison: Comparison) -> str:
    """Compare memory, step time and price of the other runs with the first run, in a sentence."""
    first, *others = names = letters(comparison.runs)
    if any(run.ending not in ("ok", PLANNED) for run in comparison.runs):
        return ", ".join(f"{name} {ended(run.ending)}" for name, run in zip(names, comparison.runs, strict=True)) + "."
    rows = [row for row in comparison.quantities if row.key in ANSWERED]
    clauses = [
        _against(first, name, [(row.key, row.differences[place]) for row in rows]) for place, name in enumerate(others)
    ]
    clauses.append(
        units.not_known("step time", (run.basis for run in comparison.runs if "step_seconds" in run.summary))
    )
    if any(clauses):
        return f"{'; '.join(filter(None, clauses))}."
    changes = len(comparison.values)
    if not changes:
        return "Nothing differs in the configuration."
    return f"The configurations differ in {changes} value{'s' * (changes != 1)}, without a common quantity."


def letters(runs: Sequence[RunView]) -> list[str]:
    """Name each run with a letter: A, B, ..."""
    return [chr(ord("A") + index) for index in range(len(runs))]


def ended(ending: str) -> str:
    """Write how a run ended (``RunView.ending``), as a verb."""
    endings = {
        "ok": "ran",
        PLANNED: "has not run",
        "gpu_oom": "ran out of GPU memory",
        "host_oom": "ran out of host memory",
        DOES_NOT_LAST: "does not last",
    }
    return endings.get(ending, f"ended as {ending}")


def _against(base: str, other: str, differences: Sequence[tuple[str, Difference | None]]) -> str:
    """Write ``B takes 44.7 GiB of reserved memory (A 57.8 GiB, -22.5 %), ...``; empty if both share no quantity."""
    values = [_value_against(base, key, difference) for key, difference in differences if difference]
    return f"{other} takes {', '.join(values)}" if values else ""


def _value_against(base: str, key: str, difference: Difference) -> str:
    value = f"{_in_words(key, difference.other.value)} {ANSWERED[key][0]}"
    if not difference.absolute:
        return f"{value} (as {base})"
    notes = [f"{base} {_in_words(key, difference.base.value)}"]
    notes += [units.signed_percent(difference.relative)] if difference.relative is not None else []
    notes += ["within the noise"] if difference.within_noise else []
    return f"{value} ({', '.join(notes)})"


def _in_words(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return f"{units.about(value)} GiB"
    return units.usd(value) if key.startswith("usd") else units.seconds(value)


def show_warnings(warnings: Sequence[str], out: Console) -> None:
    for warning in warnings:
        say(f"! {warning}", out, "yellow")


def _change_row(change: ChangedKey) -> list[str]:
    """Write a changed key with its values; empty for the words of the only command, which have nothing beside them."""
    values = _different_words(change.values) if change.key == COMMAND else change.values
    return [change.key, *map(_written, values)] if values else []


def _written(value: Any) -> str:
    return "-" if value is None else str(value) or "(empty)"


def _different_words(commands: Sequence[str | None]) -> list[str | None]:
    """Shorten command lines to the options and words that not all of them have; empty with fewer than two commands."""
    parts = [_options(command) for command in commands if command]
    return [
        " ".join(part for part in _options(command) if not all(part in each for each in parts)) if command else None
        for command in (commands if len(parts) > 1 else ())
    ]


def _options(command: str) -> list[str]:
    """Split a command line into its options, each with its value, and its other words."""
    parts: list[str] = []
    for word in command.split():
        if parts and parts[-1].startswith("-") and " " not in parts[-1] and not word.startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    return parts


def _show_quantities(
    quantities: Sequence[QuantityRow], place: int, base: str, other: str, out: Console, all_quantities: bool
) -> None:
    """Print the quantities of one run beside the quantities of the first run."""
    known = [row for row in quantities if row.quantities[0] or row.quantities[place + 1]]
    shown = [row for row in known if all_quantities or _is_shown(row, row.differences[place])]
    both = {row.key: (row.quantities[0], row.quantities[place + 1]) for row in shown}
    places = units.places(each.value for key, values in both.items() if _is_size(key) for each in values if each)
    rows = [
        (
            units.name(row.key),
            *(_known(row.key, each, places) for each in both[row.key]),
            *_difference(row.key, row.differences[place], places, missing="not known" if all(both[row.key]) else "-"),
        )
        for row in shown
    ]
    if rows:
        title = f"{other} against {base}: largest rank, memory in GiB; * marks a difference within the noise"
        columns = ["quantity", base, other, f"{other} - {base}", "%", "noise"]
        show_table(out, title, columns, rows, spare=("noise", "%"), always=(base, other))
    show_omitted(len(known) - len(shown), out)


def show_omitted(count: int, out: Console) -> None:
    """Print how many quantities are not shown, unless all are."""
    if count:
        say(f"Quantities within the noise, or that follow from these: {count} (--all shows them).", out)


def _is_shown(row: QuantityRow, difference: Difference | None) -> bool:
    return row.key in MAIN or (difference is not None and difference.is_finding and not follows(row.key))


def follows(key: str) -> bool:
    """Return whether a quantity follows from others; a phase's reserved memory follows from earlier, fuller phases."""
    return key in FOLLOWING or key.endswith(".peak_reserved_bytes")


def _is_size(key: str) -> bool:
    return key.endswith("_bytes")


def _known(key: str, quantity: Quantity | None, places: int) -> str:
    if quantity is None:
        return "-"
    return units.known(_value(key, quantity.value, places), quantity.basis, is_rate(key))


def _value(key: str, value: float, places: int, digits: int = 4) -> str:
    if _is_size(key):
        return units.gib(value, places)
    if "seconds" in key:
        return units.seconds(value)
    return units.usd(value) if key.startswith("usd") else units.number(value, digits)


def _difference(key: str, difference: Difference | None, places: int, missing: str) -> tuple[str, str, str]:
    """Write the difference, its percentage, and the noise, with a star if the difference is within the noise.

    ``missing`` is written if there is no difference.
    """
    if difference is None:
        return missing, "-", "-"
    change = units.with_sign(difference.absolute, _value(key, abs(difference.absolute), places, DIFFERENCE_DIGITS))
    noise = "-" if difference.noise is None else _value(key, difference.noise, places, DIFFERENCE_DIGITS)
    return change, units.signed_percent(difference.relative), noise + STAR * bool(difference.within_noise)
