"""``memlab figures PATH... --output DIR``: draw charts for print, as PNG and SVG."""

import argparse
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from memlab.cli.commands.run_selection import add_selection, selected
from memlab.core.errors import MemlabError, nearest
from memlab.system.terminal import safe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="DIR", help="folder for the files")
    help = "draw only these kinds (default: all that have data, but explain, which replays the history of each run)"
    parser.add_argument("--kind", nargs="+", default=[], metavar="KIND", help=help)
    help = "overlay two configurations: zero_stage=zero3,offload=none zero_stage=zero2,offload=optimizer"
    parser.add_argument("--slices", nargs=2, metavar="KEY=VALUE,...", help=help)


def run(arguments: argparse.Namespace) -> int:
    from memlab.report.figures import KINDS, draw
    from memlab.report.figures.explained import KIND as EXPLAIN
    from memlab.report.figures.explained import draw_explained

    for kind in arguments.kind:
        if kind not in (*KINDS, EXPLAIN):
            raise MemlabError(f"--kind {kind}: no such kind of figure. {nearest(kind, (*KINDS, EXPLAIN))}")
    of_points = [kind for kind in arguments.kind or KINDS if kind != EXPLAIN]
    drawn: list[Iterable[tuple[str, list[Path] | str]]] = []
    if EXPLAIN in arguments.kind:
        drawn.append(draw_explained(selected(arguments.paths, arguments.where), arguments.output))
    if arguments.slices or of_points:
        runs = selected(arguments.paths, arguments.where, of_points=True)
        drawn.append(_slices(runs, arguments) if arguments.slices else draw(runs, arguments.output, of_points))
    written = [_report(kind, result) for kind, result in chain.from_iterable(drawn)]
    return 0 if any(written) else 1


def _slices(runs, arguments: argparse.Namespace):
    from memlab.analyse.effects import effects_of_sets
    from memlab.analyse.identity import select
    from memlab.report.figures import draw_slices

    sides = [select(runs, words.split(",")) for words in arguments.slices]
    for words, side in zip(arguments.slices, sides, strict=True):
        if not side:
            raise MemlabError(f"--slices {words}: no run has these values. memlab table lists the runs.")
    first, second = arguments.slices
    effects = effects_of_sets(sides[0], sides[1], names=(first, second))
    if (count := len(effects.configurations)) > 1:
        raise MemlabError(f"--slices: these slices hold {count} configurations. Add KEY=VALUE until each holds one.")
    return draw_slices([*sides[0], *sides[1]], effects, arguments.output)


def _report(kind: str, result: list[Path] | str) -> bool:
    """Print the files of a figure, or why it was not drawn. Returns whether it was drawn."""
    if isinstance(result, str):
        print(f"no {kind}: {safe(result)}")
        return False
    print(" ".join(map(safe, result)))
    return True
