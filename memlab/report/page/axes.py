"""What each axis did, over all pairs of runs that differ in it alone; and which axes never vary alone."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from memlab.analyse.effects import Effects, Pair, effects_by
from memlab.analyse.identity import MODE, configurations, differing_axes
from memlab.analyse.run import Run
from memlab.report import units

POINT = ("seq_len", "batch")
"""The groups that make the points of a configuration."""

MANY = 40
"""Configurations up to which every two are looked at; one more axis that never varies alone is found sooner."""


def effect_rows(effects: Sequence[Effects], held: str) -> list[dict[str, Any]]:
    """The range of each axis' effect on memory and speed, over all pairs."""
    keys = (held, "peak_reserved_bytes", "samples_per_second", "usd_per_million_tokens")
    return [
        {
            "axis": axis.by,
            "options": f"{each.base} \N{RIGHTWARDS ARROW} {each.other}",
            "figure": units.name(each.key),
            "lowest": each.lowest,
            "median": each.median,
            "highest": each.highest,
            "pairs": each.pairs,
            "noise": None if each.unknown_noise == each.pairs else each.within_noise,
        }
        for axis in effects
        for each in axis.ranges
        if each.key in keys
    ]


def all_effects(runs: Sequence[Run]) -> list[Effects]:
    """Of every axis in which runs differ, but the two that make the points."""
    axes = [axis for axis in differing_axes(runs) if axis not in POINT]
    axes = [axis for axis in axes if isinstance(runs[0].config.get(axis), dict) or axis == MODE]
    return [effects_by(runs, axis) for axis in axes]


def effect_sentences(effects: Effects, held: str) -> Iterator[str]:
    """A sentence for each two options: the range over all pairs, then how it goes from the shortest to the longest."""
    for base, other in dict.fromkeys((pair.base, pair.other) for pair in effects.pairs):
        ranges = {each.key: each for each in effects.ranges if (each.base, each.other) == (base, other)}
        parts = []
        for key in (held, "peak_reserved_bytes", "samples_per_second"):
            each = ranges.get(key)
            if each:
                noise = f", {each.within_noise} of {each.pairs} within the noise" if each.within_noise else ""
                span = f"{units.percent(each.lowest)} to {units.percent(each.highest)}"
                parts.append(f"{units.name(key)} {span} (median {units.percent(each.median)}{noise})")
        pairs = [pair for pair in effects.pairs if (pair.base, pair.other) == (base, other)]
        told = f"{effects.by} from {base} to {other}, {len(pairs)} pairs: {'; '.join(parts)}."
        yield told + _course(pairs, effects.by)


def _course(pairs: Sequence[Pair], by: str) -> str:
    """How the effect on reserved memory changes along the sequence length, in the longest series."""
    key = "peak_reserved_bytes"
    series: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        if key in pair.differences:
            series.setdefault((pair.where, pair.micro), []).append(pair)
    several = [each for each in series.values() if len(each) > 2]
    if not several:
        return ""
    told = []
    for each in several[:2]:
        ends = (each[0], each[-1])
        words = [f"{units.percent(end.differences[key].relative)} at {units.tokens(end.tokens)}" for end in ends]
        shared = [word for word in each[0].where.split() if not word.startswith(f"{by}=")] if len(several) > 1 else []
        told.append(f"{' and '.join(words)} ({' '.join([*shared, 'batch', str(each[0].micro)])})")
    note = " Some lengths are interpolated." if any(pair.interpolated for each in several for pair in each) else ""
    return f" Reserved memory: {'; '.join(told)}.{note}"


def confounded(runs: Sequence[Run], effects: Sequence[Effects]) -> Iterator[str]:
    """A sentence for each axis that never varies alone, with the fewest others that vary with it."""
    firsts = [members[0] for members in configurations(runs).values()][:MANY]
    together = [[axis for axis in differing_axes(pair) if axis not in POINT] for pair in combinations(firsts, 2)]
    told = set()
    for each in effects:
        with_it = [axes for axes in together if each.by in axes and len(axes) > 1]
        if each.pairs or not with_it:
            continue
        fewest = frozenset(min(with_it, key=len))
        if fewest not in told:
            told.add(fewest)
            others = " and ".join(sorted(fewest - {each.by}))
            yield f"{each.by} never varies without {others}: their effects cannot be told apart."
