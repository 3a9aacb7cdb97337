"""``memlab advise PATH...``: recommend one of the measured or predicted configurations for a training."""

import argparse

from memlab.cli.commands.number_types import number, whole
from memlab.cli.commands.run_selection import add_selection, selected
from memlab.core.ranges import NOT_NEGATIVE, POSITIVE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--samples", type=whole(1), required=True, help="number of samples in the training set")
    parser.add_argument("--epochs", type=number(POSITIVE), default=1.0, help="passes over them (default: %(default)s)")
    help = "tokens of a sample; 1 for images"
    parser.add_argument("--seq-len", type=whole(1), required=True, metavar="TOKENS", help=help)
    parser.add_argument(
        "--effective-batch", type=whole(1), metavar="SAMPLES", help="samples of an optimizer step (default: any)"
    )
    help = "price of the node per hour (default: the price in the runs)"
    parser.add_argument("--usd-per-hour", type=number(NOT_NEGATIVE), metavar="USD", help=help)
    parser.add_argument(
        "--gpu-memory", type=number(POSITIVE), metavar="GIB", help="memory of one GPU (default: the memory in the runs)"
    )


def run(arguments: argparse.Namespace) -> int:
    from memlab.analyse.advise import Training, advise
    from memlab.report.advice_text import show_advice
    from memlab.report.text import console

    training = Training(
        samples=arguments.samples,
        epochs=arguments.epochs,
        tokens=arguments.seq_len,
        effective_batch=arguments.effective_batch,
        usd_per_hour=arguments.usd_per_hour,
        memory_gib=arguments.gpu_memory,
    )
    show_advice(advise(selected(arguments.paths, arguments.where, of_points=True), training), console())
    return 0
