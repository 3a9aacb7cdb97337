"""What each axis did, over all pairs of runs that differ in it alone; and which axes never vary alone."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from memlab.analyse.effects import Effects, Pair, effects_by
from memlab.analyse.figures import Figure
from memlab.analyse.identity import MODE, configurations, differing_axes
from memlab.analyse.run import Run
from memlab.report import units

POINT = ("seq_len", "batch")
"""The groups that make the points of a configuration."""

MANY = 40
"""Configurations up to which every two are looked at; one more axis that never varies alone is found sooner."""


COMPARED = ("peak_reserved_bytes", "samples_per_second", "usd_per_million_tokens")
"""Figures that the page tells effects on, beside memory in live tensors."""


def all_effects(runs: Sequence[Run], figures: Mapping[int, Mapping[str, Figure]], held: str) -> list[Effects]:
    """Of every axis in which runs differ, but the two that make the points. ``figures``: by a run's identity."""
    axes = [axis for axis in differing_axes(runs) if axis not in POINT]
    axes = [axis for axis in axes if isinstance(runs[0].config.get(axis), dict) or axis == MODE]
    keys = (held, *COMPARED)
    compared = {place: {key: found[key] for key in keys if key in found} for place, found in figures.items()}
    return [effects_by(runs, axis, lambda run: compared[id(run)]) for axis in axes]


def effect_sentences(effects: Sequence[Effects], held: str, most: int) -> list[str]:
    """A sentence for each two options of an axis, those with the most pairs first; the last counts what is left out."""
    found = [(axis, base, other, pairs) for axis in effects for (base, other), pairs in _by_options(axis).items()]
    found.sort(key=lambda each: -len(each[3]))
    told = [_effect_sentence(*each, held) for each in found[:most]]
    return told + ([f"And {len(found) - most:,} more, in the table of effects."] if len(found) > most else [])


def _by_options(effects: Effects) -> dict[tuple[str, str], list[Pair]]:
    pairs: dict[tuple[str, str], list[Pair]] = {}
    for pair in effects.pairs:
        pairs.setdefault((pair.base, pair.other), []).append(pair)
    return pairs


def _effect_sentence(effects: Effects, base: str, other: str, pairs: Sequence[Pair], held: str) -> str:
    """The range over all pairs, then how it goes from the shortest to the longest."""
    ranges = {each.key: each for each in effects.ranges if (each.base, each.other) == (base, other)}
    parts = []
    for key in (held, "peak_reserved_bytes", "samples_per_second"):
        each = ranges.get(key)
        if each:
            noise = f", {each.within_noise} within the noise" if each.within_noise else ""
            span = f"{units.percent(each.lowest)} to {units.percent(each.highest)}"
            parts.append(f"{units.name(key)} {units.percent(each.median)} ({span}{noise})")
    told = f"{effects.by} from {base} to {other}, median of {len(pairs):,} pairs: {'; '.join(parts)}."
    return told + _course(pairs)


def _course(pairs: Sequence[Pair]) -> str:
    """How the effect on reserved memory changes along the sequence length, in the longest series."""
    key = "peak_reserved_bytes"
    series: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        if key in pair.differences:
            series.setdefault((pair.where, pair.micro), []).append(pair)
    longest = max(series.values(), key=len, default=[])
    if len(longest) <= 2:
        return ""
    ends = (longest[0], longest[-1])
    words = [f"{units.percent(end.differences[key].relative)} at {units.tokens(end.tokens)}" for end in ends]
    return f" Reserved memory over the longest series: {' and '.join(words)}."


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
