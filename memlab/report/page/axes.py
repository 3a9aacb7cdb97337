"""Effects of each axis, over all pairs of runs that differ only in it, and axes that never vary alone."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from memlab.analyse.effects import Effects, Pair, effects_by
from memlab.analyse.identity import MODE, configurations, differing_axes
from memlab.analyse.quantities import Quantity
from memlab.analyse.run_view import RunView
from memlab.report import units

POINT = ("seq_len", "batch")
"""Groups that define the points of a configuration."""

MANY = 40
"""Most configurations whose pairs are searched for axes that never vary alone."""


COMPARED = ("peak_reserved_bytes", "samples_per_second", "usd_per_million_tokens")
"""Quantities whose effects the page shows, beside memory in live tensors."""


def all_effects(runs: Sequence[RunView], quantities: Mapping[int, Mapping[str, Quantity]], held: str) -> list[Effects]:
    """Compute the effects of each axis in which runs differ, except :data:`POINT`.

    ``quantities`` is keyed by ``id(run)``.
    """
    axes = [axis for axis in differing_axes(runs) if axis not in POINT]
    axes = [axis for axis in axes if isinstance(runs[0].config.get(axis), dict) or "." in axis or axis == MODE]
    keys = (held, *COMPARED)
    compared = {place: {key: found[key] for key in keys if key in found} for place, found in quantities.items()}
    return [effects_by(runs, axis, lambda run: compared[id(run)]) for axis in axes]


def effect_sentences(effects: Sequence[Effects], held: str, most: int) -> list[str]:
    """Write a sentence for each two options of an axis, most pairs first; the last one counts the omitted sentences."""
    found = [(axis, base, other, pairs) for axis in effects for (base, other), pairs in _by_options(axis).items()]
    found.sort(key=lambda each: -len(each[3]))
    sentences = [_effect_sentence(*each, held) for each in found[:most]]
    if len(found) > most:
        sentences.append(f"The table of effects has {len(found) - most:,} more.")
    return sentences


def _by_options(effects: Effects) -> dict[tuple[str, str], list[Pair]]:
    pairs: dict[tuple[str, str], list[Pair]] = {}
    for pair in effects.pairs:
        pairs.setdefault((pair.base, pair.other), []).append(pair)
    return pairs


def _effect_sentence(effects: Effects, base: str, other: str, pairs: Sequence[Pair], held: str) -> str:
    """Write the range of the effect over all pairs, then how the effect changes along the sequence length."""
    ranges = {each.key: each for each in effects.ranges if (each.base, each.other) == (base, other)}
    parts = []
    for key in (held, "peak_reserved_bytes", "samples_per_second"):
        each = ranges.get(key)
        if each:
            several = f"{units.signed_percent(each.lowest)} to {units.signed_percent(each.highest)}"
            noise = f"{each.within_noise} within the noise" if each.within_noise else ""
            notes = ", ".join(filter(None, [several if each.pairs > 1 else "", noise]))
            parts.append(f"{units.name(key)} {units.signed_percent(each.median)}" + f" ({notes})" * bool(notes))
    if "samples_per_second" not in ranges and effects.bounds:
        parts.append("speed: not known")
    count = f"median of {len(pairs):,} pairs" if len(pairs) > 1 else "one pair"
    sentence = f"{effects.by} from {base} to {other}, {count}: {'; '.join(parts)}."
    return sentence + _effect_over_length(pairs)


def _effect_over_length(pairs: Sequence[Pair]) -> str:
    """Write the effect on reserved memory at the shortest and longest sequence length of the longest series."""
    key = "peak_reserved_bytes"
    series: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        if key in pair.differences:
            series.setdefault((pair.where, pair.micro), []).append(pair)
    longest = max(series.values(), key=len, default=[])
    if len(longest) <= 2:
        return ""
    ends = (longest[0], longest[-1])
    words = [f"{units.signed_percent(end.differences[key].relative)} at {units.tokens(end.tokens)}" for end in ends]
    return f" Change of reserved memory over the longest series: {' and '.join(words)}."


def confounded(runs: Sequence[RunView], effects: Sequence[Effects]) -> Iterator[str]:
    """Yield a sentence for each axis that never varies alone, with the fewest axes that vary with it."""
    firsts = [members[0] for members in configurations(runs).values()][:MANY]
    of_pairs = [[axis for axis in differing_axes(pair) if axis not in POINT] for pair in combinations(firsts, 2)]
    seen = set()
    for each in effects:
        with_it = [axes for axes in of_pairs if each.by in axes and len(axes) > 1]
        if each.pairs or not with_it:
            continue
        shortest = min(with_it, key=len)
        fewest = frozenset(shortest)
        if fewest not in seen:
            seen.add(fewest)
            others = " and ".join(sorted(fewest - {each.by}))
            yield f"{each.by} never varies without {others}: their effects cannot be separated."
