"""Pairs of two sets of runs, such as two sweeps: measured and predicted, or before and after an upgrade."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from memlab.analyse.diff import axis_confounds
from memlab.analyse.effects import Effects, name_of, named, pair_all
from memlab.analyse.identity import COMMAND, HOW_MEASURED, MODE, TOKENS, axis_of, differing_axes, families, of_repeats
from memlab.analyse.quantities import quantities_of
from memlab.analyse.run_view import RunView, flatten, is_command, value_at
from memlab.core.config import MISSING
from memlab.core.errors import MemlabError
from memlab.core.plan import SHAPE


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
    of_point = (*HOW_MEASURED, *apart, *([TOKENS] if axes else []))
    axes += [axis for pair in of_one_name for axis in differing_axes(pair) if axis not in ("measure", *axes)]
    axes = list(dict.fromkeys(axes))
    effects = Effects(by or (axes[0] if len(axes) == 1 else ""), names, warnings=axis_confounds(axes, by))
    alike = of_one_name + [
        members
        for mixed in families([*rest[0], *rest[1]], (*of_point, MODE))
        for members in _of_one_source(mixed, side_of)
    ]
    modes = [MODE] * any(len({run.source for run in members}) > 1 for members in alike)
    for where, members in named(effects, alike, [*axes, "measure", *modes]):
        found: dict[str, dict[int, list[RunView]]] = {}
        for run in members:
            tokens = 0 if id(run) in paired else value_at(run.config, TOKENS) or 0
            found.setdefault(side_of[id(run)], {}).setdefault(tokens, []).append(run)
        for name, by_length in found.items() if apart else ():
            kinds = len(families([run for repeats in by_length.values() for run in repeats], (*HOW_MEASURED, TOKENS)))
            if kinds > 1:
                reason = f"{name} holds {kinds} configurations for one of the other folder, since the folders differ in"
                raise MemlabError(f"{reason} {', '.join(axes) or 'their commands'}. Choose one with --where.")
        folders = {name_of(run) for run in members} - {run.run_id for run in members}  # named by the user
        label = folders.pop() if len(folders) == 1 else where
        pair_all(effects, label, found, f"only in {next(iter(found))}", quantities_of, names[0])
    return effects


def _as_point(run: RunView) -> RunView:
    """Copy a run without its mode, and its command without the program's folder, which an upgrade changes."""
    config = {name: part for name, part in run.config.items() if name != MODE}
    if command := value_at(config, COMMAND):
        program, space, words = command.partition(" ")
        config["training"] = {**config["training"], "command": PurePath(program).name + space + words}
    return replace(run, config=config)


def _of_one_name(base: Sequence[RunView], other: Sequence[RunView]) -> list[list[RunView]]:
    """Pair commands by the name of their folder, where each set has one folder of that name."""
    sides: list[dict[str, list[RunView]]] = [{}, {}]
    for side, runs in zip(sides, (base, other), strict=True):
        for run in runs:
            if is_command(run) and name_of(run) != run.run_id:
                side.setdefault(name_of(run), []).append(run)
    both = [[*runs, *sides[1].get(name, [])] for name, runs in sides[0].items() if name in sides[1]]
    return [pair for pair in both if len(pair) == 2]


def _of_one_source(runs: list[RunView], side_of: Mapping[int, str]) -> list[list[RunView]]:
    """Separate measured from predicted runs of a point where both sets have runs of one kind."""
    sources = dict.fromkeys(run.source for run in runs)
    by_source = {source: [run for run in runs if run.source == source] for source in sources}
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
            if key in (*SHAPE, *HOW_MEASURED) or of_repeats(key):
                continue
            values = [{json.dumps(part.get(key)) for part in side if part.get(key) != MISSING} for side in parts]
            if not values[0] & values[1]:
                apart.append(key)
                axes |= {axis_of(key): None} if all(values) and key != COMMAND else {}
    return apart, list(axes)
