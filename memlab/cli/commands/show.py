"""``memlab show [RUN_FOLDER...]``: print the table of a run folder."""

import argparse

from memlab.cli.commands.run_selection import latest_run, run_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = "run folders (default: the latest run below outputs/)"
    parser.add_argument("folders", nargs="*", metavar="RUN_FOLDER", help=help)


def run(arguments: argparse.Namespace) -> int:
    from memlab.report.out_of_memory_text import show_pointer
    from memlab.report.run_text import show_run
    from memlab.report.text import console

    for folder in map(run_folder, arguments.folders or [latest_run()]):
        show_run(folder.read_record(), console())
        show_pointer([folder], console())
    return 0
