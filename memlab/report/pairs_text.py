"""Terminal output of pairs of runs: the effect of an axis, and the points of two sets of runs."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console

from memlab.analyse.diff import Comparison
from memlab.analyse.effects import EffectRange, Effects, Pair
from memlab.analyse.identity import point_of
from memlab.analyse.quantities import Difference
from memlab.analyse.run_view import RunView
from memlab.report import units
from memlab.report.diff_text import ANSWERED, MAIN, STAR, ended, follows, letters, show_omitted, show_warnings
from memlab.report.short_names import names_by_label
from memlab.report.terminal_table import show_table
from memlab.report.text import SHOWN, say

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
    rows = [
        (
            f"{each.base} -> {each.other}",
            units.name(each.key),
            units.signed_percent(each.lowest),
            units.signed_percent(each.median),
            units.signed_percent(each.highest),
            each.pairs,
            each.within_noise if each.unknown_noise < each.pairs else "unknown",
        )
        for each in effects.ranges
        if all_quantities or each.key in MAIN or (_is_finding(each) and not follows(each.key))
    ]
    axis = effects.by or "from -> to"
    columns = [axis, "quantity", "lowest", "median", "highest", "pairs", "within noise"]
    title = f"Effect of {effects.by} over all pairs" if effects.by else "Change over all pairs"
    show_table(out, title, columns, rows, left=2, common=[axis], spare=("within noise",))
    show_omitted(len(effects.ranges) - len(rows), out)


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
    clauses = [f"{other} instead of {base}: {changes or 'nothing to compare'} ({pairs})"]
    clauses.append("" if "step_seconds" in found else units.not_known("step time", effects.bounds))
    clauses.append(f"{len(more)} more in the table" if more else "")
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
    clauses = [f"{units.counted(len(effects.pairs), 'pair')}, {other} instead of {base}{differs}: {words}"]
    clauses.append(
        units.not_known("step time of the other pairs" if "step_seconds" in found else "step time", effects.bounds)
    )
    return f"{'; '.join(filter(None, clauses))}."


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
    spare = tuple(units.name(key) for key in ("samples_per_second", "host_peak_bytes", "usd_per_million_tokens"))
    spare = (*spare, units.name("peak_allocated_bytes"))
    show_table(out, title, columns, rows, left=2, notes=1, common=columns[:3], spare=spare)
    if len(pairs) > SHOWN:
        out.print(f"{len(pairs) - SHOWN:,} more pairs")


def _effect(key: str, difference: Difference | None) -> str:
    if difference is None:
        return "-"
    change = (
        units.signed_quantity(key, difference.absolute)
        if difference.relative is None
        else units.signed_percent(difference.relative)
    )
    return change + STAR * bool(difference.within_noise)


def _show_ended(effects: Effects, out: Console) -> None:
    """Print a line for each way in which pairs have no values: one side or both ran out of memory, or failed."""
    names, _ = names_by_label(effects.configurations)
    alike: dict[str, list[str]] = {}
    for pair in effects.ended:
        alike.setdefault(_how_ended(pair), []).append(point_in_words(pair, names))
    for how, points in alike.items():
        say(f"{units.counted(len(points), 'more pair')}: {how} ({_first(points)}).", out)


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
        how = f"{units.signed_percent(difference.relative)}, {' to '.join(sizes)} GiB"
    pairs = units.counted(count, "pair")
    return (
        f"Over {limit} of peak reserved memory: {len(over)} of {pairs}, worst {point_in_words(worst, names)} ({how})."
    )


def _show_unpaired(effects: Effects, out: Console) -> None:
    """Print one line: how many points have no partner, their names, and why."""
    reasons: dict[str, list[str]] = {}
    for name, reason in effects.unpaired:
        reasons.setdefault(reason, []).append(name)
    if reasons:
        points = "; ".join(f"{_first(names)}: {reason}" for reason, names in reasons.items())
        say(f"{units.counted(len(effects.unpaired), 'point')} without a partner ({points}).", out)


def _first(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
