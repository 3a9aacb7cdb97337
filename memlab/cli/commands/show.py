"""``memlab show [--all | --plan] [FOLDER...]``: print the answer of a run folder again, or the table of a sweep."""

import argparse
from pathlib import Path

from memlab.cli.commands.run_selection import add_all, latest_run, run_folder, selected
from memlab.runs.folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = "run folders, or folders of sweeps (default: the latest run below outputs/)"
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=help)
    add_all(parser)
    help = "print what the run composed as JSON, as mode=compose does: a line for each run of a sweep"
    parser.add_argument("--plan", action="store_true", help=help)


def run(arguments: argparse.Namespace) -> int:
    from memlab.report.details_text import show_answer
    from memlab.report.points_text import show_points
    from memlab.report.text import console

    for path in map(Path, arguments.folders or [latest_run()]):
        if arguments.plan:
            _show_plans(path)
            continue
        if not (path / RunFolder.RECORD).exists() and any(path.glob(f"*/{RunFolder.RECORD}")):
            show_points(selected([path], []), console())
            continue
        folder = run_folder(path)
        show_answer(folder.read_record(), folder, console(), arguments.all)
    return 0


def _show_plans(path: Path) -> None:
    from memlab.launch.composition import as_json, kept_composition

    inside = [] if (path / RunFolder.RECORD).exists() else sorted(path.glob(f"*/{RunFolder.RECORD}"))
    folders = [run_folder(record.parent) for record in inside] or [run_folder(path)]
    print(as_json([kept_composition(folder) for folder in folders], is_sweep=len(folders) > 1))
