"""Start of a maintainers' program: its arguments, and one line for a user's mistake."""

import argparse
import sys
from collections.abc import Callable

from memlab.cli.commands.shared_arguments import output_file
from memlab.cli.main import guarded


def start(
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int | None],
    description: str | None,
) -> None:
    """Run a program with the words of its command line, and exit with the code that ``run`` returns; ``None``: 0."""
    parser = argparse.ArgumentParser(description=description)
    add_arguments(parser)
    sys.exit(guarded(lambda: run(parser.parse_args())))


def add_page(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a program that writes a page."""
    help = "file for the page (default: print it)"
    parser.add_argument("--output", "-o", type=output_file, metavar="FILE", help=help)
