"""``memlab show RUN_FOLDER...``"""

import argparse

from rich.console import Console

from memlab.record import RunFolder
from memlab.report.run_table import show_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="RUN_FOLDER")


def run(arguments: argparse.Namespace) -> int:
    for folder in arguments.folders:
        show_run(RunFolder(folder).read_record(), Console())
    return 0
