"""Effect of one axis over a whole sweep, pair by pair, and its range.

The two runs of a pair have the same micro batch and sequence length. If one option of an axis was not measured at a
length, its quantities are interpolated linearly between its neighbours, and the pair records this. Nothing is
extrapolated.
"""

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from statistics import median

from memlab.analyse.diff import environment_confounds
from memlab.analyse.identity import MODE, TOKENS, changed_keys, configurations, families, point_of
from memlab.analyse.quantities import Difference, Quantity, differences, interpolate, merge_repeats, quantities_of
from memlab.analyse.run_view import LACKS_MEMORY, RunView, value_at, why_not
from memlab.core.basis import Basis
from memlab.core.config import GROUPS, LIBRARIES, with_own_apart
from memlab.core.errors import MemlabError, nearest
from memlab.core.plan import UNREMARKABLE

RunsByLength = Mapping[int, Sequence[RunView]]
"""Runs by sequence length: the repeats of each point."""

Side = tuple[str, RunsByLength, Mapping[int, Mapping[str, Quantity]]]
"""One option of an axis: its name, its runs, and their quantities by sequence length."""


@dataclass(frozen=True)
class Pair:
    """One point under two options. ``interpolated``: the side (``base`` or ``other``) that was not measured here."""

    where: str  # label of the configuration that both sides share
    micro: int
    tokens: int
    base: str
    other: str
    differences: dict[str, Difference]
    interpolated: str | None = None
    endings: tuple[str, str] = ("ok", "ok")


@dataclass(frozen=True)
class EffectRange:
    """Relative effect on one quantity over all pairs of two options: lowest, median, highest.

    ``within_noise`` counts pairs whose difference is noise, ``unknown_noise`` pairs whose noise is not known.
    """

    base: str
    other: str
    key: str
    lowest: float
    median: float
    highest: float
    pairs: int
    within_noise: int
    unknown_noise: int


@dataclass
class Effects:
    """Pairs of runs that differ in the axis ``by``, or pairs of the points of two ``sets``. Show ``warnings`` first.

    Between sets, ``by`` is the only axis in which they differ, and empty if there is none or several.
    ``configurations``: ``where`` of a pair -> a run of this configuration, without the option of the axis. ``bounds``:
    those of the times that are not compared. ``ended``: pairs without values, because a side did not end as ok.
    ``unpaired``: runs with the reason.
    """

    by: str
    sets: tuple[str, str] | None = None
    configurations: dict[str, RunView] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    bounds: list[Basis] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    ended: list[Pair] = field(default_factory=list)
    unpaired: list[tuple[str, str]] = field(default_factory=list)

    @cached_property
    def ranges(self) -> list[EffectRange]:
        """Ranges of every quantity for every two options, in the order of the pairs."""
        found: dict[tuple[str, str, str], list[Difference]] = {}
        for pair in self.pairs:
            for key, difference in pair.differences.items():
                if difference.relative is not None:
                    found.setdefault((pair.base, pair.other, key), []).append(difference)
        return [_summarised(*names, differences) for names, differences in found.items()]


QuantitiesOf = Callable[[RunView], Mapping[str, Quantity]]
"""Function that returns the quantities of a run to compare."""


def effects_by(runs: Sequence[RunView], by: str, quantities: QuantitiesOf = quantities_of) -> Effects:
    """Pair the runs that differ only in ``by``: a group, a dotted key, or ``mode`` (measurement with prediction).

    Raises :class:`MemlabError` for an unknown axis.
    """
    group, _, key = by.partition(".")
    axes = {*GROUPS, *LIBRARIES, MODE, *(own for run in runs for own in with_own_apart(run.config)["own"])}
    if group not in axes or (key and all(value_at(run.config, by) is None for run in runs)):
        raise MemlabError(f"--by {by}: no such axis. {nearest(by, axes - {*LIBRARIES})}")
    option_of = _option_of(runs, by)
    alike = families(runs, (by, TOKENS))
    effects = Effects(by)
    for where, members in named(effects, alike, [by]):
        sides: dict[str, dict[int, list[RunView]]] = {}
        for run in members:
            tokens = 0 if group == "seq_len" else value_at(run.config, TOKENS)
            sides.setdefault(option_of(run), {}).setdefault(tokens, []).append(run)
        pair_all(effects, where, sides, f"no run differs from it in {by} alone", quantities)
    return effects


def named(
    effects: Effects, alike: Sequence[Sequence[RunView]], axes: Collection[str]
) -> Iterator[tuple[str, Sequence[RunView]]]:
    """Yield each group of runs to pair with the label that they share without their options of ``axes``.

    Notes the labels in ``effects``, and what differs between the environments of a group.
    """
    effects.warnings += environment_confounds(alike)
    firsts = [_without(members[0], axes) for members in alike]
    found = configurations(firsts)
    effects.configurations = {where: members[0] for where, members in found.items()}
    where_of = {id(run): where for where, members in found.items() for run in members}
    for first, members in zip(firsts, alike, strict=True):
        yield where_of[id(first)], members


def _without(run: RunView, axes: Collection[str]) -> RunView:
    """Return the run without its options of the axes, so that both runs of a pair have the same label."""
    config, choices = (
        {key: value for key, value in each.items() if key not in axes} for each in (run.config, run.choices)
    )
    return replace(run, config=config, choices=choices, source="" if MODE in axes else run.source)


def _option_of(runs: Sequence[RunView], by: str) -> Callable[[RunView], str]:
    """Return a function that names a run's option: the choice, with values where one choice has several."""
    group, _, key = by.partition(".")
    if by == MODE:
        return lambda run: run.source
    if key:
        return lambda run: json.dumps(value_at(run.config, by))
    names = _names_of_parts(runs, group)
    return lambda run: names[id(run.config.get(group))]


def _names_of_parts(runs: Sequence[RunView], group: str) -> dict[int, str]:
    """Name each distinct part (the dictionary of ``group`` in a configuration), keyed by the part's ``id``.

    A name is the option, followed by the values in which parts with the same option differ.
    """
    parts = {id(part): part for part in (run.config.get(group) for run in runs)}
    texts = {place: json.dumps(part, sort_keys=True) for place, part in parts.items()}
    options: dict[str, Counter[str]] = {}
    for run in runs:
        options.setdefault(texts[id(run.config.get(group))], Counter())[run.choices.get(group, "")] += 1
    option_of = {place: options[text].most_common(1)[0][0] for place, text in texts.items()}
    places: dict[str, list[int]] = {}
    for place, option in option_of.items():
        places.setdefault(option, []).append(place)
    keys = {option: changed_keys([parts[place] for place in found]) for option, found in places.items()}
    names = {}
    for place, option in option_of.items():
        values = [f"{key}={value}" for key in keys[option] if (value := value_at(parts[place], key)) != ""]
        names[place] = " ".join([option, *values] if option else values)
    return names


def pair_all(
    effects: Effects,
    where: str,
    sides: Mapping[str, RunsByLength],
    lonely: str,
    quantities: QuantitiesOf,
    base: str | None = None,
) -> None:
    """Pair each option with the first one. ``lonely``: why the runs of a single option have no partner."""
    names = sorted(sides, key=lambda name: (name != base, name not in UNREMARKABLE, _natural(name)))
    if len(names) < 2:
        points = [repeats[0] for by_length in sides.values() for repeats in by_length.values()]
        effects.unpaired += [(name_of(run), lonely) for run in points]
        return
    tables = {name: _quantities_by_tokens(by_length, quantities) for name, by_length in sides.items()}
    for other in names[1:]:
        _pair_lengths(effects, where, *((name, sides[name], tables[name]) for name in (names[0], other)))


def _pair_lengths(effects: Effects, where: str, base: Side, other: Side) -> None:
    both = (base, other)
    for tokens in sorted({*base[1], *other[1]}):
        here = [by_length[tokens][0] for _, by_length, _ in both if tokens in by_length]
        endings = [_ending(by_length[tokens]) for _, by_length, _ in both if tokens in by_length]
        found = [_at(table, tokens) for *_, table in both]
        point = (where, *point_of(here[0]), base[0], other[0])
        if len(here) == 2 and set(endings) != {"ok"}:
            effects.ended.append(Pair(*point, {}, endings=(endings[0], endings[1])))
        elif endings[0] == "ok" and all(found):
            sides = zip(("base", "other"), (base[1], other[1]), strict=True)
            missing = next((side for side, by_length in sides if tokens not in by_length), None)
            effects.pairs.append(Pair(*point, differences(*found), missing))
            bases = dict.fromkeys(quantity.basis for table in found for quantity in table.values())
            effects.bounds += [basis for basis in bases if basis.is_bound and basis not in effects.bounds]
        else:
            unknown = [name for (name, *_), known in zip(both, found, strict=True) if not known]
            effects.unpaired.append((name_of(here[0]), _reason(here[0], tokens, unknown)))


def _ending(repeats: Sequence[RunView]) -> str:
    """Return how a point ended: ok, unless more of its repeats lacked memory than ended as ok, or none did."""
    counts = Counter(run.ending for run in repeats if run.ending in ("ok", *LACKS_MEMORY))
    return max(counts, key=lambda ending: (counts[ending], ending == "ok")) if counts else repeats[0].ending


def name_of(run: RunView) -> str:
    """Name a run by its folder: the id of a training command says little."""
    return PurePath(run.path).name


def _reason(run: RunView, tokens: int, missing: Sequence[str]) -> str:
    if not run.fits_and_lasts:
        return why_not(run)
    return f"no measurement of {' or '.join(missing)} at or around {tokens} tokens"


def _quantities_by_tokens(by_length: RunsByLength, quantities: QuantitiesOf) -> dict[int, dict[str, Quantity]]:
    ok = {
        tokens: [quantities(run) for run in repeats if run.fits_and_lasts]
        for tokens, repeats in sorted(by_length.items())
        if _ending(repeats) == "ok"
    }
    return {tokens: merge_repeats(found) for tokens, found in ok.items()}


def _at(table: Mapping[int, Mapping[str, Quantity]], tokens: int) -> Mapping[str, Quantity] | None:
    """Return the quantities at a sequence length, interpolated between its neighbours; ``None`` outside the table."""
    if tokens in table:
        return table[tokens]
    lengths = list(table)
    after = bisect_left(lengths, tokens)
    if not 0 < after < len(lengths):
        return None
    low, high = lengths[after - 1], lengths[after]
    return interpolate(table[low], table[high], (tokens - low) / (high - low))


def _summarised(base: str, other: str, key: str, differences: Sequence[Difference]) -> EffectRange:
    relative = [difference.relative for difference in differences]
    noise = [difference.within_noise for difference in differences]
    counts = (len(relative), noise.count(True), noise.count(None))
    return EffectRange(base, other, key, min(relative), median(relative), max(relative), *counts)


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key that puts b2 before b16."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]
