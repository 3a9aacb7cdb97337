"""``memlab report PATH... [-o FILE]``: write one HTML page that opens anywhere."""

import argparse
from pathlib import Path

from memlab.cli.commands.run_selection import add_selection, collected
from memlab.cli.commands.shared_arguments import output_file
from memlab.core.sizes import MIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    help = "file for the page (default: %(default)s)"
    parser.add_argument("--output", "-o", type=output_file, default=Path("report.html"), metavar="FILE", help=help)
    parser.add_argument("--title", help="title of the page (default: the name of the folder)")


def run(arguments: argparse.Namespace) -> int:
    from memlab.report.page import write_page

    runs, skipped = collected(arguments.paths, arguments.where, of_points=True)
    title = arguments.title or ", ".join(Path(path).resolve().name for path in arguments.paths)
    write_page(runs, skipped, title, arguments.output)
    print(f"{arguments.output}: {len(runs):,} points, {arguments.output.stat().st_size / MIB:.1f} MiB")
    return 0
