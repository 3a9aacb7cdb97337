"""Effect of one axis over a whole sweep, pair by pair, and its range; and pairs of two sets of runs, such as two
sweeps: measured and predicted, or before and after an upgrade.

The two runs of a pair have the same micro batch and sequence length. If one option of an axis was not measured at a
length, its quantities are interpolated linearly between its neighbours, and the pair records this. Nothing is
extrapolated.
"""

import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from statistics import median, mode
from typing import Any

from memlab.analyse import identity
from memlab.analyse.diff import axis_confounds, environment_confounds
from memlab.analyse.quantities import Difference, Quantity, differences, interpolate, merge_repeats, quantities_of
from memlab.analyse.run_view import LACKS_MEMORY, RunView, flatten, is_command, value_at, why_not
from memlab.core.basis import Basis
from memlab.core.config import GROUPS, LIBRARIES, MISSING
from memlab.core.config_values import with_own_apart
from memlab.core.errors import MemlabError, nearest
from memlab.core.grouping import grouped
from memlab.core.plan import SHAPE, UNREMARKABLE
from memlab.files.conf_files import usual_values

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
        found: dict[tuple[str, str, str], list[tuple[float, bool | None]]] = defaultdict(list)
        for pair in self.pairs:
            for key, difference in pair.differences.items():
                if difference.relative is not None:
                    found[pair.base, pair.other, key].append((difference.relative, difference.within_noise))
        ranges = []
        for names, each in found.items():
            shares, noise = zip(*each, strict=True)
            counts = len(shares), noise.count(True), noise.count(None)
            ranges.append(EffectRange(*names, min(shares), median(shares), max(shares), *counts))
        return ranges


QuantitiesOf = Callable[[RunView], Mapping[str, Quantity]]
"""Function that returns the quantities of a run to compare."""


def effects_by(runs: Sequence[RunView], by: str, quantities: QuantitiesOf = quantities_of) -> Effects:
    """Pair the runs that differ only in ``by``: a group, a dotted key, or ``mode`` (measurement with prediction).

    Raises :class:`MemlabError` for an unknown axis.
    """
    group, _, key = by.partition(".")
    axes = {*GROUPS, *LIBRARIES, identity.MODE, *(own for run in runs for own in with_own_apart(run.config)["own"])}
    if group not in axes or (key and all(value_at(run.config, by) is None for run in runs)):
        raise MemlabError(f"--by {by}: no such axis. {nearest(by, axes - {*LIBRARIES})}")
    option_of = _option_of(runs, by)
    effects = Effects(by)
    for where, members in named(effects, identity.families(runs, (by, identity.TOKENS)), [by]):
        sides = sides_by_length(
            members, option_of, lambda run: 0 if group == "seq_len" else value_at(run.config, identity.TOKENS)
        )
        pair_all(effects, where, sides, f"no run differs from it in {by} alone", quantities)
    return effects


def sides_by_length(
    runs: Iterable[RunView], side_of: Callable[[RunView], str], tokens_of: Callable[[RunView], int]
) -> dict[str, dict[int, list[RunView]]]:
    """Return side -> sequence length -> its runs. ``tokens_of``: 0 for a run that pairs whatever its length is."""
    return {side: grouped(members, tokens_of) for side, members in grouped(runs, side_of).items()}


def named(
    effects: Effects, alike: Sequence[Sequence[RunView]], axes: Collection[str]
) -> Iterator[tuple[str, Sequence[RunView]]]:
    """Yield each group of runs to pair with the label that they share without their options of ``axes``.

    Notes the labels in ``effects``, and what differs between the environments of a group.
    """
    effects.warnings += environment_confounds(alike)
    firsts = [_without(members[0], axes) for members in alike]
    found = identity.configurations(firsts)
    effects.configurations = {where: members[0] for where, members in found.items()}
    where_of = {id(run): where for where, members in found.items() for run in members}
    for first, members in zip(firsts, alike, strict=True):
        yield where_of[id(first)], members


def _without(run: RunView, axes: Collection[str]) -> RunView:
    """Return the run without its options of the axes, so that both runs of a pair have the same label."""
    config, choices = (
        {key: value for key, value in each.items() if key not in axes} for each in (run.config, run.choices)
    )
    return replace(run, config=config, choices=choices, source="" if identity.MODE in axes else run.source)


def _option_of(runs: Sequence[RunView], by: str) -> Callable[[RunView], str]:
    """Return a function that names a run's option: the choice, with values where one choice has several."""
    group, _, key = by.partition(".")
    if by == identity.MODE:
        return lambda run: run.source
    if key or not any(isinstance(run.config.get(group), dict) for run in runs):  # a field, or a key of the user's own
        return lambda run: value if isinstance(value := value_at(run.config, by), str) else json.dumps(value)
    names = _names_of_parts(runs, group)
    return lambda run: names[id(run.config.get(group))]


def _names_of_parts(runs: Sequence[RunView], group: str) -> dict[int, str]:
    """Name each distinct part (the dictionary of ``group`` in a configuration), keyed by the part's ``id``.

    A name is the option, followed by the values in which parts with the same option differ, if the part has them and
    the option that ships has others.
    """
    parts: dict[int, Any] = {id(part): part for part in (run.config.get(group) for run in runs)}
    texts = {place: json.dumps(part, sort_keys=True) for place, part in parts.items()}
    alike = grouped(runs, lambda run: texts[id(run.config.get(group))])
    options = {text: mode(run.choices.get(group, "") for run in members) for text, members in alike.items()}
    option_of = {place: options[text] for place, text in texts.items()}
    places = grouped(option_of, option_of.__getitem__)
    keys = {option: identity.changed_keys([parts[place] for place in found]) for option, found in places.items()}
    names = {}
    for place, option in option_of.items():
        usual, found = usual_values(group, option), {key: value_at(parts[place], key) for key in keys[option]}
        values = [f"{key}={value}" for key, value in found.items() if value not in ("", None, usual.get(key))]
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
        known = [table for table in found if table]
        point = (where, *identity.point_of(here[0]), base[0], other[0])
        if len(here) == 2 and set(endings) != {"ok"}:
            effects.ended.append(Pair(*point, {}, endings=(endings[0], endings[1])))
        elif endings[0] == "ok" and len(known) == 2:
            sides = zip(("base", "other"), (base[1], other[1]), strict=True)
            missing = next((side for side, by_length in sides if tokens not in by_length), None)
            effects.pairs.append(Pair(*point, differences(*known), missing))
            bases = dict.fromkeys(quantity.basis for table in known for quantity in table.values())
            effects.bounds += [basis for basis in bases if basis.is_bound and basis not in effects.bounds]
        else:
            unknown = " or ".join(name for (name, *_), table in zip(both, found, strict=True) if not table)
            reason = f"no measurement of {unknown} at or around {tokens} tokens"
            effects.unpaired.append((name_of(here[0]), reason if here[0].fits_and_lasts else why_not(here[0])))


def _ending(repeats: Sequence[RunView]) -> str:
    """Return how a point ended: ok, unless more of its repeats lacked memory than ended as ok, or none did."""
    counts = Counter(run.ending for run in repeats if run.ending in ("ok", *LACKS_MEMORY))
    return max(counts, key=lambda ending: (counts[ending], ending == "ok")) if counts else repeats[0].ending


def name_of(run: RunView) -> str:
    """Name a run by its folder: the id of a training command says little."""
    return PurePath(run.path).name


def _quantities_by_tokens(by_length: RunsByLength, quantities: QuantitiesOf) -> dict[int, dict[str, Quantity]]:
    return {
        tokens: merge_repeats([quantities(run) for run in repeats if run.fits_and_lasts])
        for tokens, repeats in sorted(by_length.items())
        if _ending(repeats) == "ok"
    }


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


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key that puts b2 before b16."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]


def effects_of_sets(
    base: Sequence[RunView], other: Sequence[RunView], names: tuple[str, str], by: str | None = None
) -> Effects:
    """Pair the points of two sets of runs, such as two sweeps, whichever of them were measured or predicted.

    Commands pair by the name of their folder, if the user gave one that both sets have. Of the other runs, the sets
    differ in the keys that have no value in both. ``warnings`` lists several of these, unless ``by`` names them. All
    other keys tell the points apart. A measurement is paired with a prediction only where the sets have no
    point of the same source. Lengths are interpolated only between sets that differ.

    Raises :class:`MemlabError` if a set has several configurations for one of the other set.
    """
    sides = [[_as_point(run) for run in runs] for runs in (base, other)]  # copies, since a run may be in both sets
    side_of = {id(run): name for name, runs in zip(names, sides, strict=True) for run in runs}
    of_one_name = _of_one_name(*sides)
    paired = {id(run) for pair in of_one_name for run in pair}
    rest = [[run for run in side if id(run) not in paired] for side in sides]
    apart, axes = _what_differs(*rest)
    of_point = (*identity.HOW_MEASURED, *apart, *([identity.TOKENS] if axes else []))
    axes += [axis for pair in of_one_name for axis in identity.differing_axes(pair) if axis not in ("measure", *axes)]
    axes = list(dict.fromkeys(axes))
    effects = Effects(by or (axes[0] if len(axes) == 1 else ""), names, warnings=axis_confounds(axes, by))
    alike = of_one_name + [
        members
        for mixed in identity.families([*rest[0], *rest[1]], (*of_point, identity.MODE))
        for members in _of_one_source(mixed, side_of)
    ]
    modes = [identity.MODE] * any(len({run.source for run in members}) > 1 for members in alike)
    for where, members in named(effects, alike, [*axes, "measure", *modes]):
        for name, one_side in grouped(members, lambda run: side_of[id(run)]).items() if apart else ():
            kinds = len(identity.families(one_side, (*identity.HOW_MEASURED, identity.TOKENS)))
            if kinds > 1:
                reason = f"{name} holds {kinds} configurations for one of the other folder, since the folders differ in"
                raise MemlabError(f"{reason} {', '.join(axes) or 'their commands'}. Choose one with --where.")
        folders = {name_of(run) for run in members} - {run.run_id for run in members}  # named by the user
        label = folders.pop() if len(folders) == 1 else where
        found = sides_by_length(
            members,
            lambda run: side_of[id(run)],
            lambda run: 0 if id(run) in paired else value_at(run.config, identity.TOKENS) or 0,
        )
        pair_all(effects, label, found, f"only in {next(iter(found))}", quantities_of, names[0])
    return effects


def _as_point(run: RunView) -> RunView:
    """Copy a run for the comparison of two sets: with the point that was composed, and without its mode. Its command
    loses the folder of the program, which an upgrade changes."""
    config = {name: part for name, part in run.config.items() if name != identity.MODE}
    for key, value in run.composed.items():
        group, _, name = key.partition(".")
        config[group] = {**config[group], name: value}
    if command := value_at(config, identity.COMMAND):
        program, space, words = command.partition(" ")
        config["training"] = {**config["training"], "command": PurePath(program).name + space + words}
    return replace(run, config=config)


def _of_one_name(base: Sequence[RunView], other: Sequence[RunView]) -> list[list[RunView]]:
    """Pair commands by the name of their folder, where each set has one folder of that name."""
    first, second = (
        grouped((run for run in runs if is_command(run) and name_of(run) != run.run_id), name_of)
        for runs in (base, other)
    )
    both = [[*runs, *second[name]] for name, runs in first.items() if name in second]
    return [pair for pair in both if len(pair) == 2]


def _of_one_source(runs: list[RunView], side_of: Mapping[int, str]) -> list[list[RunView]]:
    """Separate measured from predicted runs of a point where both sets have runs of one kind."""
    by_source = grouped(runs, lambda run: run.source)
    shared = any(len({side_of[id(run)] for run in members}) > 1 for members in by_source.values())
    return list(by_source.values()) if shared else [runs]


def _what_differs(base: Sequence[RunView], other: Sequence[RunView]) -> tuple[list[str], list[str]]:
    """List the keys that have no value in both sets, except those of a point; and the axes of those that are known.

    A value that is not known is no value. The words of a command are no axis: what they set is in the other keys.
    """
    apart: list[str] = []
    axes: dict[str, None] = {}
    for name in dict.fromkeys(name for run in (*base, *other) for name in run.config):
        sides = [{id(part): part for part in (run.config.get(name) for run in runs)} for runs in (base, other)]
        parts = [[flatten({name: part}) for part in side.values()] for side in sides]  # runs share equal parts
        for key in dict.fromkeys(key for side in parts for part in side for key in part):
            if key in (*SHAPE, *identity.HOW_MEASURED) or identity.of_repeats(key):
                continue
            values = [{json.dumps(part.get(key)) for part in side if part.get(key) != MISSING} for side in parts]
            if not values[0] & values[1]:
                apart.append(key)
                axes |= {identity.axis_of(key): None} if all(values) and key != identity.COMMAND else {}
    return apart, list(axes)
