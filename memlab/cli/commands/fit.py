"""``memlab fit PATH...``: fit a line of memory over tokens, and compute the longest sequence and batch that fit."""

import argparse

from memlab.cli.commands.run_selection import add_selection, selected
from memlab.cli.commands.shared_arguments import add_gpu_memory, number
from memlab.core.errors import MemlabError, nearest
from memlab.core.schema import Range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    help = "memory quantity to fit, a key of the record (default: %(default)s)"
    parser.add_argument("--figure", default="peak_reserved_bytes", metavar="KEY", help=help)
    add_gpu_memory(parser)
    free = "share of the memory that stays free, from 0 to 1 (default: %(default)s)"
    parser.add_argument("--margin", type=number(Range(0.0, 1.0, below=True)), default=0.05, metavar="SHARE", help=free)


def run(arguments: argparse.Namespace) -> int:
    from memlab.analyse.fit import fit_all
    from memlab.core.summary import BYTES
    from memlab.report.fit_text import show_fits
    from memlab.report.text import console

    if arguments.figure not in BYTES:
        raise MemlabError(f"--figure {arguments.figure}: no such memory quantity. {nearest(arguments.figure, BYTES)}")
    fits, without = fit_all(selected(arguments.paths, arguments.where, of_points=True), arguments.figure)
    show_fits(fits, without, arguments.gpu_memory, arguments.margin, console())
    return 0 if fits else 1
