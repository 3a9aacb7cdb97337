"""``memlab explain [RUN_FOLDER]``: where every byte goes, from the driver's figure to the line of code."""

import argparse

from memlab.cli.commands.number_types import whole
from memlab.cli.commands.run_selection import latest_run
from memlab.runs.folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = "run folder of a prediction, or of a command measured with --explain (default: the latest below outputs/)"
    parser.add_argument("folder", nargs="?", metavar="RUN_FOLDER", help=help)
    help = "levels of the tree: 3 ends with kinds of memory, 4 with modules, 5 with lines of code (default: 4)"
    parser.add_argument("--depth", type=whole(1), default=4, metavar="N", help=help)


def run(arguments: argparse.Namespace) -> int:
    from memlab.analyse.explain.explained import explain
    from memlab.report.explain_text import show_explained
    from memlab.report.text import console

    show_explained(explain(RunFolder(arguments.folder or latest_run())), console(), arguments.depth)
    return 0
