"""Terminal output of a comparison of runs, and of pairs of runs: the effect of an axis, and the points of two sets."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from rich.console import Console

from memlab.analyse.diff import PLANNED, ChangedKey, Comparison, QuantityRow
from memlab.analyse.effects import EffectRange, Effects, Pair
from memlab.analyse.identity import COMMAND, point_of
from memlab.analyse.quantities import Difference, Quantity
from memlab.analyse.run_view import RunView
from memlab.core.basis import is_rate
from memlab.core.grouping import grouped
from memlab.core.record import DOES_NOT_LAST
from memlab.report import units
from memlab.report.short_names import names_by_label
from memlab.report.text import SHOWN, say, show_items, show_table

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
    if not comparison.values:
        return "Nothing differs in the configuration."
    return f"The configurations differ in {units.counted(len(comparison.values), 'value')}, without a common quantity."


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


OF_SETS = ("peak_allocated_bytes", "peak_reserved_bytes", "step_seconds")
"""Quantities in the first sentence about two sets. Their largest change orders the pairs."""

NAMED = 3
"""Most points that a line names for one reason."""


def show_effects(effects: Effects, out: Console, all_quantities: bool = False) -> None:
    """Print the answer, warnings, the points without values or partner, the range over all pairs, and the pairs."""
    say(sets_answer(effects) if effects.sets else effects_answer(effects), out, "bold")
    show_warnings(effects.warnings, out)
    _show_ended(effects, out)
    _show_unpaired(effects, out)
    if effects.pairs and (all_quantities or not effects.sets):
        _show_ranges(effects, out, all_quantities)
    if effects.pairs:
        _show_pairs(effects, out)


def _show_ranges(effects: Effects, out: Console, all_quantities: bool) -> None:
    shown = [
        each
        for each in effects.ranges
        if all_quantities or each.key in MAIN or (_is_finding(each) and not follows(each.key))
    ]
    axis = effects.by or "from -> to"
    cells: dict[str, Callable[[EffectRange], object]] = {
        axis: lambda each: f"{each.base} -> {each.other}",
        "quantity": lambda each: units.name(each.key),
        "lowest": lambda each: units.signed_percent(each.lowest),
        "median": lambda each: units.signed_percent(each.median),
        "highest": lambda each: units.signed_percent(each.highest),
        "pairs": lambda each: each.pairs,
        "within noise": lambda each: each.within_noise if each.unknown_noise < each.pairs else "unknown",
    }
    title = f"Effect of {effects.by} over all pairs" if effects.by else "Change over all pairs"
    show_items(out, title, shown, cells, left=2, common=[axis], spare=("within noise",))
    show_omitted(len(effects.ranges) - len(shown), out)


def _is_finding(found: EffectRange) -> bool:
    """Return whether any pair changed by more than its noise, and the change does not round to zero."""
    seen = units.signed_percent(max(abs(found.lowest), abs(found.highest))) != units.signed_percent(0)
    return seen and found.within_noise < found.pairs - found.unknown_noise


def effects_answer(effects: Effects) -> str:
    """Write the effect of the two options with the most pairs in a short sentence."""
    counts = Counter((pair.base, pair.other) for pair in effects.pairs)
    if not counts:
        return f"{effects.by}: no two runs differ only in it."
    ((base, other), count), *more = counts.most_common()
    found = {each.key: each for each in effects.ranges if (each.base, each.other) == (base, other)}
    alike: dict[tuple[str, str], list[str]] = {}
    for key, (_, name) in ANSWERED.items():
        if key in found:
            noise = " (within the noise)" if found[key].within_noise == found[key].pairs else ""
            alike.setdefault((units.signed_percent(found[key].median), noise), []).append(name)
    changes = ", ".join(f"{median} {' and '.join(names)}{noise}" for (median, noise), names in alike.items())
    pairs = "one pair" if count == 1 else f"median of {count} pairs"
    clauses = (
        f"{other} instead of {base}: {changes or 'nothing to compare'} ({pairs})",
        "" if "step_seconds" in found else units.not_known("step time", effects.bounds),
        f"{len(more)} more in the table" if more else "",
    )
    return f"{'; '.join(filter(None, clauses))}."


def sets_answer(effects: Effects) -> str:
    """Write how many points of two sets pair, and the median and the largest change of memory and step time."""
    base, other = effects.sets or ("", "")
    if not effects.pairs:
        return f"{base} and {other} share no point that ran in both."
    found = {each.key: each for each in effects.ranges}
    changes = [_median_and_largest(found[key], len(effects.pairs)) for key in OF_SETS if key in found]
    words = f"median and largest change of {', '.join(changes)}" if changes else "nothing to compare"
    differs = f" ({effects.by} differs)" if effects.by else ""
    answer = f"{units.counted(len(effects.pairs), 'pair')}, {other} instead of {base}{differs}: {words}"
    what = "step time of the other pairs" if "step_seconds" in found else "step time"
    return f"{'; '.join(filter(None, (answer, units.not_known(what, effects.bounds))))}."


def _median_and_largest(found: EffectRange, pairs: int) -> str:
    largest = max(found.lowest, found.highest, key=abs)
    of = f" (of {units.counted(found.pairs, 'pair')})" if found.pairs < pairs else ""
    return f"{units.name(found.key)} {units.signed_percent(found.median)} and {units.signed_percent(largest)}{of}"


def _largest_change(pair: Pair) -> float:
    """Return the largest relative change of memory or step time beyond the noise."""
    found = [pair.differences[key] for key in OF_SETS if key in pair.differences]
    return max((abs(each.relative or 0.0) for each in found if not each.within_noise), default=0.0)


def _show_pairs(effects: Effects, out: Console) -> None:
    pairs = sorted(effects.pairs, key=_largest_change, reverse=True) if effects.sets else effects.pairs
    names, usual = names_by_label(effects.configurations)
    keys = [key for key in (*MAIN, "samples_per_second") if any(key in pair.differences for pair in pairs)]
    rows = [
        (
            names.get(pair.where, pair.where),
            f"{pair.base} -> {pair.other}",
            *("-" if each is None else each for each in (pair.micro, pair.tokens)),
            *(_effect(key, pair.differences.get(key)) for key in keys),
            {"base": f"{pair.base} interpolated", "other": f"{pair.other} interpolated", None: ""}[pair.interpolated],
        )
        for pair in pairs[:SHOWN]
    ]
    columns = ["configuration", "from -> to", "batch", "tokens", *(units.name(key) for key in keys), "note"]
    title = f"{units.counted(len(pairs), 'pair')}; {STAR.strip()} marks a difference within the noise"
    title += "; the largest change beyond the noise first" * bool(effects.sets)
    title += f"; unless named: {usual}" if usual and any(pair.where in names for pair in pairs) else ""
    least_used = ("samples_per_second", "host_peak_bytes", "usd_per_million_tokens", "peak_allocated_bytes")
    spare = tuple(map(units.name, least_used))
    show_table(out, title, columns, rows, left=2, notes=1, common=columns[:3], spare=spare)
    if len(pairs) > SHOWN:
        out.print(f"{len(pairs) - SHOWN:,} more pairs")


def _effect(key: str, difference: Difference | None) -> str:
    if difference is None:
        return "-"
    share = difference.relative
    change = units.signed_quantity(key, difference.absolute) if share is None else units.signed_percent(share)
    return change + STAR * bool(difference.within_noise)


def _show_ended(effects: Effects, out: Console) -> None:
    """Print a line for each way in which pairs have no values: one side or both ran out of memory, or failed."""
    names, _ = names_by_label(effects.configurations)
    for how, pairs in grouped(effects.ended, _how_ended).items():
        points = [point_in_words(pair, names) for pair in pairs]
        say(f"{units.counted(len(points), 'more pair')}: {how} ({units.first_of(points, NAMED)}).", out)


def _how_ended(pair: Pair) -> str:
    return ", ".join(f"{name} {ended(how)}" for name, how in zip((pair.base, pair.other), pair.endings, strict=True))


def point_in_words(pair: Pair, names: Mapping[str, str]) -> str:
    """Name the configuration of a pair, and the point where it is known. ``names``: of :func:`names_by_label`."""
    point = "" if None in (pair.micro, pair.tokens) else f" batch {pair.micro:,} x {units.tokens(pair.tokens)}"
    return names.get(pair.where, pair.where) + point


def pairs_of(comparison: Comparison) -> list[Pair]:
    """Pair each run of a comparison with the first one."""
    first, *others = zip(letters(comparison.runs), comparison.runs, strict=True)
    return [
        Pair(
            f"{name} against {first[0]}",
            *point_of(run),
            first[0],
            name,
            {row.key: found for row in comparison.quantities if (found := row.differences[place])},
            endings=(first[1].ending, run.ending),
        )
        for place, (name, run) in enumerate(others)
    ]


def growth_line(over: Sequence[Pair], count: int, limit: str, configurations: Mapping[str, RunView]) -> str:
    """Write how many of ``count`` pairs grow by more than the limit, and the worst one, which is the first."""
    names, _ = names_by_label(configurations)
    worst, how = over[0], _how_ended(over[0])
    if set(worst.endings) == {"ok"}:
        difference = worst.differences["peak_reserved_bytes"]
        sizes = (units.about(each.value) for each in (difference.base, difference.other))
        how = f"{_effect('peak_reserved_bytes', difference)}, {' to '.join(sizes)} GiB"
    pairs = units.counted(count, "pair")
    return (
        f"Over {limit} of peak reserved memory: {len(over)} of {pairs}, worst {point_in_words(worst, names)} ({how})."
    )


def _show_unpaired(effects: Effects, out: Console) -> None:
    """Print one line: how many points have no partner, their names, and why."""
    if effects.unpaired:
        reasons = grouped(effects.unpaired, itemgetter(1))
        points = "; ".join(
            f"{units.first_of([name for name, _ in each], NAMED)}: {reason}" for reason, each in reasons.items()
        )
        say(f"{units.counted(len(effects.unpaired), 'point')} without a partner ({points}).", out)
