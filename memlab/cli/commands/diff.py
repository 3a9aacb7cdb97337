"""``memlab diff``: compare runs, two sets of runs, one axis of a sweep, or configuration files that have not run."""

import argparse
import re
from pathlib import Path

from memlab.cli.commands.run_selection import add_where, selected
from memlab.core.errors import MemlabError
from memlab.core.sizes import GIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = (
        "run folders, configuration files (JSON or YAML), two folders of runs, whose points are paired, or a sweep "
        "folder with --by"
    )
    parser.add_argument("paths", nargs="+", metavar="RUN", help=help)
    parser.add_argument("--by", metavar="AXIS", help="compare all pairs of runs that differ only in this axis")
    help = (
        "exit with code 1 if a pair's peak reserved memory grows by more, or its second run alone is out of memory; a "
        "limit is 2%% or 0.5GiB"
    )
    parser.add_argument("--fail-over", type=_limit, metavar="LIMIT", help=help)
    help = "show every quantity, not only the main ones and those that changed by more than the noise"
    parser.add_argument("--all", action="store_true", help=help)
    add_where(parser)


def _limit(text: str):
    from memlab.analyse.growth_limit import GrowthLimit

    if not (written := re.fullmatch(r"(\d+(?:\.\d+)?) ?(%|GiB)?", text)):
        raise argparse.ArgumentTypeError(f"must be a percentage such as 2% or a size such as 0.5GiB, not '{text}'")
    amount, is_share = float(written[1]), written[2] != "GiB"
    return GrowthLimit(f"{written[1]} {written[2] or '%'}", amount * (0.01 if is_share else GIB), is_share)


def run(arguments: argparse.Namespace) -> int:
    from memlab.analyse.diff import compare
    from memlab.analyse.effects import effects_by
    from memlab.report.diff_text import pairs_of, show_comparison, show_effects
    from memlab.report.text import console

    paths, by, out = arguments.paths, arguments.by, console()
    if len(paths) == 1 and by is None:
        raise MemlabError(
            f"memlab diff {paths[0]}: name a second run, or a second folder of runs. With --by AXIS one folder is "
            "enough: its points that differ in this axis are compared."
        )
    sides = [] if len(paths) == 1 else [_runs_of(path, arguments.where) for path in paths]
    if sides and all(len(side) == 1 for side in sides):
        comparison = compare([side[0] for side in sides], by)
        show_comparison(comparison, out, arguments.all)
        return _check_growth(arguments.fail_over, pairs_of(comparison), {}, out)
    effects = _of_sets(paths, sides, by) if sides else effects_by(selected(paths, arguments.where, of_points=True), by)
    show_effects(effects, out, arguments.all)
    return _check_growth(arguments.fail_over, [*effects.pairs, *effects.ended], effects.configurations, out)


def _runs_of(path: str, conditions: list[str]) -> list:
    """Return the runs of one command-line word: a configuration file, or a folder with runs."""
    from memlab.analyse.diff import planned_run

    return [planned_run(Path(path))] if Path(path).is_file() else selected([path], conditions)


def _of_sets(paths: list[str], sides: list[list], by: str | None):
    from memlab.analyse.effects import effects_of_sets

    if len(sides) > 2:
        raise MemlabError(
            "memlab diff compares at most two folders that hold several runs: name two, or one with --by AXIS."
        )
    folders = [Path(path).resolve() for path in paths]
    if folders[0] == folders[1]:
        raise MemlabError(f"memlab diff {' '.join(paths)}: both are the same folder. Name two.")
    first, second = paths if folders[0].name == folders[1].name else [folder.name for folder in folders]
    return effects_of_sets(sides[0], sides[1], names=(first, second), by=by)


def _check_growth(limit, pairs, configurations, out) -> int:
    """Print one line if the peak reserved memory of a pair grows by more than the limit. Returns the exit code."""
    from memlab.report.diff_text import growth_line

    over = limit.over(pairs) if limit else []
    if over:
        out.print(growth_line(over, len(pairs), limit.text, configurations), soft_wrap=True)
    return 1 if over else 0
