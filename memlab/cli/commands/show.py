"""``memlab show [--all] [FOLDER...]``: print the answer of a run folder again, or the table of a sweep."""

import argparse
from pathlib import Path

from memlab.cli.commands.run_selection import add_all, latest_run, run_folder, selected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = "run folders, or folders of sweeps (default: the latest run below outputs/)"
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=help)
    add_all(parser)


def run(arguments: argparse.Namespace) -> int:
    from memlab.report.details_text import show_answer
    from memlab.report.points_text import show_points
    from memlab.report.text import console
    from memlab.runs.folder import RunFolder

    for path in map(Path, arguments.folders or [latest_run()]):
        if not (path / RunFolder.RECORD).exists() and any(path.glob(f"*/{RunFolder.RECORD}")):
            show_points(selected([path], []), console())
            continue
        folder = run_folder(path)
        show_answer(folder.read_record(), folder, console(), arguments.all)
    return 0
