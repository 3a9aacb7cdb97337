"""``memlab diff``: compare runs, two sets of runs, one axis of a sweep, or configuration files that have not run."""

import argparse
from pathlib import Path

from memlab.cli.commands.run_selection import add_where, selected
from memlab.core.errors import MemlabError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="RUN",
        help="run folders, configuration files (JSON or YAML), two folders of runs, or a sweep folder with --by",
    )
    parser.add_argument("--by", metavar="AXIS", help="compare all pairs of runs that differ only in this axis")
    help = "show every quantity, not only the main ones and those that changed by more than the noise"
    parser.add_argument("--all", action="store_true", help=help)
    add_where(parser)


def run(arguments: argparse.Namespace) -> int:
    from memlab.analyse.diff import compare
    from memlab.analyse.effects import effects_by, effects_of_sets
    from memlab.report.diff_text import show_comparison, show_effects
    from memlab.report.text import console

    paths, by = arguments.paths, arguments.by
    if len(paths) == 1 and by is None:
        raise MemlabError("memlab diff needs two runs or more. For the effect of one axis of a sweep, add --by AXIS.")
    if len(paths) == 1:
        show_effects(effects_by(selected(paths, arguments.where, of_points=True), by), console(), arguments.all)
        return 0
    sides = [_runs_of(path, arguments.where) for path in paths]
    if all(len(side) == 1 for side in sides):
        show_comparison(compare([side[0] for side in sides], by), console(), arguments.all)
    elif len(sides) == 2:
        folders = [Path(path).resolve().name for path in paths]
        first, second = folders if len(set(folders)) == len(folders) else paths
        effects = effects_of_sets(sides[0], sides[1], names=(first, second), by=by)
        show_effects(effects, console(), arguments.all)
    else:
        raise MemlabError(
            "memlab diff compares at most two folders that hold several runs: name two, or one with --by AXIS."
        )
    return 0


def _runs_of(path: str, conditions: list[str]) -> list:
    """Return the runs of one command-line word: a configuration file, or a folder with runs."""
    from memlab.analyse.diff import planned_run

    return [planned_run(Path(path))] if Path(path).is_file() else selected([path], conditions)
