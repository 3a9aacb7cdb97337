"""Data of the page, and its tables that sort and filter. Values that recur in many runs are stored once and shared."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memlab import __version__
from memlab.analyse.collect import Skipped
from memlab.analyse.effects import EffectRange, Effects
from memlab.analyse.fit import MARGIN, fit_all, longest
from memlab.analyse.identity import REPEATS, configurations, point_of, subject_of, tokens_of
from memlab.analyse.quantities import SMALL, held_quantity, quantities_of
from memlab.analyse.run_view import RunView, peak
from memlab.core.grouping import grouped
from memlab.report import units
from memlab.report.fit_text import equation
from memlab.report.page import points, sentences
from memlab.report.page.sentences import Named
from memlab.report.palette import styles
from memlab.report.short_names import short_names, usual_options


def payload(runs: Sequence[RunView], skipped: Sequence[Skipped], title: str) -> dict[str, Any]:
    """Build the data of the page: sizes in bytes, times in seconds; the scripts format them."""
    labelled = configurations(runs)
    names = dict(zip(labelled, short_names([members[0] for members in labelled.values()]), strict=True))
    named = {names[label]: members for label, members in labelled.items()}
    places = {id(run): number for number, members in enumerate(named.values()) for run in members}
    fits = fits_table(runs, names)  # before the runs are sorted, which changes the labels
    runs = [run for members in named.values() for run in sorted(members, key=point_of)]
    names_of_runs = [name for name, members in named.items() for _ in members]
    quantities = {id(run): quantities_of(run) for run in runs}
    shared = points.SharedValues()
    root = os.path.dirname(os.path.commonpath([run.path for run in runs]))
    unread = [(os.path.relpath(place.path, root), place.reason.replace(root + os.sep, "")) for place in skipped]
    effects = sentences.all_effects(runs, quantities, held_quantity(runs))
    columns = points.quantity_columns(runs, quantities)
    return {
        "title": title,
        "version": __version__,
        "answer": sentences.answer(named),
        "sections": [
            {"title": heading, "sentences": found}
            for heading, found in sentences.sections(named, effects, unread).items()
        ],
        "usual": usual_options([members[0] for members in named.values()]),
        "tables": {
            "leaderboard": leaderboard(named),
            "fits": fits,
            "effects": effects_table(effects),
            "notes": _table(
                [("kind", "text"), ("point", "text"), ("why", "text")], map(list, sentences.notes(runs, unread))
            ),
        },
        "configurations": _configurations(labelled, names),
        "columns": points.table_columns(runs, names_of_runs, columns),
        "quantities": columns,
        "held": held_quantity(runs),
        "repeats": REPEATS,
        "small": SMALL,
        "count": len(runs),
        "points": points.points_of(runs, places, root, shared),
        "config": shared.columns([run.config for run in runs]),
        "deepspeed": shared.columns([points.deepspeed_of(run) for run in runs]),
        "ends": points.phase_ends(runs),
        "timing": points.timing_columns(runs),
        "logs": points.logs_of(runs, shared),
        "shared": shared.values,
    }


def _configurations(labelled: dict[str, list[RunView]], names: dict[str, str]) -> list[dict[str, str]]:
    """List name, all words, subject and style of each configuration.

    Configurations of one subject share charts, so their styles differ.
    """
    subjects = grouped(labelled, lambda label: subject_of(labelled[label][0]))
    looks = {label: look for labels in subjects.values() for label, look in styles(labels).items()}
    return [
        {
            "label": names[label],
            "words": label,
            "subject": subject_of(members[0]),
            "color": looks[label].color,
            "dark": looks[label].dark,
            "dash": looks[label].dash,
        }
        for label, members in labelled.items()
    ]


Table = dict[str, Any]
"""A table: ``columns`` have name and unit, each of ``rows`` is a list of cells."""


def leaderboard(named: Named) -> Table:
    """Make a row for each configuration: its fastest point, its largest point, its smallest out-of-memory.

    The fastest is first. Where no speed is known, it shows each largest point instead, the one with the most tokens
    first, then the one with the least memory.
    """
    by_speed = sentences.fastest(named) is not None
    verb = sentences.ran_or_fit([run for members in named.values() for run in members])
    columns = [
        ("model and GPUs", "text"),
        ("configuration", "text"),
        ("tokens/s", "rate"),
        ("fastest at" if by_speed else "largest at", "text"),
        ("peak reserved there", "bytes"),
        ("per million tokens", "usd"),
        ("points", "number"),
        (f"most tokens tried in a forward that {verb}", "number"),
        ("fewest tokens out of memory", "number"),
        ("note", "text"),
    ]
    rows = [_leader(name, members, by_speed) for name, members in named.items()]
    counts: Counter[str] = Counter()
    for members in named.values():
        counts[subject_of(members[0])] += len(members)
    rows.sort(key=lambda row: (-counts[row[0]], row[0], -(row[2 if by_speed else 7] or 0), row[4] or 0))
    return _table(columns, rows)


def _leader(name: str, members: Sequence[RunView], by_speed: bool) -> list[Any]:
    ran = [run for run in members if run.fits_and_lasts]
    ooms = [tokens_of(run) for run in members if run.status == "gpu_oom"]
    notes = ["its larger batches thrash" if any(sentences.slowdowns(name, members)) else ""]
    notes += ["speed not known"] if sentences.unknown_speeds(members) else []
    _, run = sentences.fastest({name: members}) or ("", None if by_speed else max(ran, key=tokens_of, default=None))
    fastest_point: list[Any] = [None] * 4
    if run:
        micro, tokens = point_of(run)
        rate, price = (run.comparable(key) for key in ("tokens_per_second", "usd_per_million_tokens"))
        notes += [f"predicted, speed \N{PLUS-MINUS SIGN} {units.percent(run.basis.error)}"] if run.basis.error else []
        fastest_point = [
            points.short(rate),
            f"{micro:,} x {tokens:,}",
            peak(run, "peak_reserved_bytes"),
            points.short(price),
        ]
    return [
        subject_of(members[0]),
        name,
        *fastest_point,
        len(members),
        max(map(tokens_of, ran), default=None),
        min(ooms, default=None),
        "; ".join(filter(None, notes)) or None,
    ]


def fits_table(runs: Sequence[RunView], names: Mapping[str, str]) -> Table:
    """Make a row for each fit of reserved memory over tokens: the equation, and the tokens that fit by it."""
    columns = [
        ("configuration", "text"),
        ("peak reserved", "text"),
        ("tokens of one forward that fit", "number"),
        ("note", "text"),
        ("R\N{SUPERSCRIPT TWO}", "number"),
        ("points", "number"),
        ("error, leaving one out", "ratio"),
    ]
    rows = []
    for fit in fit_all(runs)[0]:
        tokens, note = None, ""
        if fit.memory_gib:
            found = longest(fit, fit.memory_gib, MARGIN)
            tokens = found.tokens
            remarks = {
                "a larger run ran out of memory": found.limit == "oom",
                f"by the line; the most that was tried is {max(fit.tokens):,}": found.extrapolated,
                "a larger run fitted, with less memory free": tokens is not None and max(fit.tokens) > tokens,
            }
            note = "; ".join(remark for remark, holds in remarks.items() if holds)
        r2 = round(fit.line.r2, 4)
        rows.append([names[fit.label], equation(fit), tokens, note, r2, fit.line.n, points.short(fit.median_error)])
    return _table(columns, rows)


def effects_table(effects: Sequence[Effects]) -> Table:
    """Make a row for each range of an axis' effect on memory, speed or price, over all pairs."""
    cells: dict[tuple[str, str], Callable[[Effects, EffectRange], Any]] = {
        ("axis", "text"): lambda axis, _: axis.by,
        ("from \N{RIGHTWARDS ARROW} to", "text"): lambda _, each: f"{each.base} \N{RIGHTWARDS ARROW} {each.other}",
        ("quantity", "text"): lambda _, each: units.name(each.key),
        ("lowest", "share"): lambda _, each: points.short(each.lowest),
        ("median", "share"): lambda _, each: points.short(each.median),
        ("highest", "share"): lambda _, each: points.short(each.highest),
        ("pairs", "number"): lambda _, each: each.pairs,
        ("within noise", "number"): lambda _, each: None if each.unknown_noise == each.pairs else each.within_noise,
    }
    ranges = [(axis, each) for axis in effects for each in axis.ranges]
    return _table(list(cells), ([write(*each) for write in cells.values()] for each in ranges))


def _table(columns: Sequence[tuple[str, str]], rows: Any) -> Table:
    return {"columns": [{"name": name, "unit": unit} for name, unit in columns], "rows": list(rows)}
