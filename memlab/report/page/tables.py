"""Tables of the page that sort and filter: a head with units, and rows of texts and numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from memlab.analyse.effects import Effects
from memlab.analyse.fit import MARGIN, fit_all, longest
from memlab.analyse.identity import point_of, subject_of, tokens_of
from memlab.analyse.run_view import RunView, peak
from memlab.report import units
from memlab.report.fit_text import equation
from memlab.report.page.points import short
from memlab.report.page.sentences import Named, fastest, notes, ran_or_fit, slowdowns, unknown_speeds

Table = dict[str, Any]
"""A table: ``columns`` have name and unit, each of ``rows`` is a list of cells."""


def leaderboard(named: Named) -> Table:
    """Make a row for each configuration: its fastest point, its largest point, its smallest out-of-memory.

    The fastest is first. Where no speed is known, it shows each largest point instead, the one with the most tokens
    first, then the one with the least memory.
    """
    by_speed = fastest(named) is not None
    verb = ran_or_fit([run for members in named.values() for run in members])
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
    counts: dict[str, int] = {}
    for row in rows:
        counts[row[0]] = counts.get(row[0], 0) + row[6]
    rows.sort(key=lambda row: (-counts[row[0]], row[0], -(row[2 if by_speed else 7] or 0), row[4] or 0))
    return _table(columns, rows)


def _leader(name: str, members: Sequence[RunView], by_speed: bool) -> list[Any]:
    ran = [run for run in members if run.fits_and_lasts]
    ooms = [tokens_of(run) for run in members if run.status == "gpu_oom"]
    notes = ["its larger batches thrash" if any(slowdowns(name, members)) else ""]
    notes += ["speed not known"] if unknown_speeds(members) else []
    _, run = fastest({name: members}) or ("", None if by_speed else max(ran, key=tokens_of, default=None))
    fastest_point: list[Any] = [None] * 4
    if run:
        micro, tokens = point_of(run)
        rate, price = (run.comparable(key) for key in ("tokens_per_second", "usd_per_million_tokens"))
        notes += [f"predicted, speed \N{PLUS-MINUS SIGN} {units.percent(run.basis.error)}"] if run.basis.error else []
        fastest_point = [short(rate), f"{micro:,} x {tokens:,}", peak(run, "peak_reserved_bytes"), short(price)]
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
        rows.append([names[fit.label], equation(fit), tokens, note, r2, fit.line.n, short(fit.median_error)])
    return _table(columns, rows)


def effects_table(effects: Sequence[Effects], held: str) -> Table:
    """Make a row for each range of an axis' effect on memory, speed or price, over all pairs."""
    columns = [
        ("axis", "text"),
        ("from \N{RIGHTWARDS ARROW} to", "text"),
        ("quantity", "text"),
        ("lowest", "share"),
        ("median", "share"),
        ("highest", "share"),
        ("pairs", "number"),
        ("within noise", "number"),
    ]
    rows = [
        [
            axis.by,
            f"{each.base} \N{RIGHTWARDS ARROW} {each.other}",
            units.name(each.key),
            short(each.lowest),
            short(each.median),
            short(each.highest),
            each.pairs,
            None if each.unknown_noise == each.pairs else each.within_noise,
        ]
        for axis in effects
        for each in axis.ranges
    ]
    return _table(columns, rows)


def notes_table(runs: Sequence[RunView], skipped: Sequence[tuple[str, str]]) -> Table:
    """Make a row for each note on a single point or skipped place."""
    return _table([("kind", "text"), ("point", "text"), ("why", "text")], map(list, notes(runs, skipped)))


def _table(columns: Sequence[tuple[str, str]], rows: Any) -> Table:
    return {"columns": [{"name": name, "unit": unit} for name, unit in columns], "rows": list(rows)}
