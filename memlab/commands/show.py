"""``memlab show [RUN_FOLDER...]``"""

import argparse

from memlab.commands.selection import latest_run
from memlab.record import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="*", metavar="RUN_FOLDER", help="default: the latest run below outputs/")


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from memlab.report.run_table import show_run

    for folder in arguments.folders or [latest_run()]:
        show_run(RunFolder(folder).read_record(), Console())
    return 0
