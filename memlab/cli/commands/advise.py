"""``memlab advise PATH... [hardware=OPTION]``: recommend one of the runs' configurations for a training."""

import argparse

from memlab.cli.commands.run_selection import add_selection, selected
from memlab.cli.commands.shared_arguments import HARDWARE, add_config_dir, add_gpu_memory, number, whole
from memlab.core.config import Hardware
from memlab.core.schema import Range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    help = "number of samples in the training set (default: as the run knows it)"
    parser.add_argument("--samples", type=whole(1), help=help)
    help = "passes over them (default: %(default)s)"
    parser.add_argument("--epochs", type=number(Range(0.0, above=True)), default=1.0, help=help)
    help = "tokens of a sample; 1 for images (default: the length of the runs)"
    parser.add_argument("--seq-len", type=whole(1), metavar="TOKENS", help=help)
    help = "samples of an optimizer step (default: any)"
    parser.add_argument("--effective-batch", type=whole(1), metavar="SAMPLES", help=help)
    help = "price of one GPU for an hour (default: the price in the runs, or the list price)"
    parser.add_argument("--usd-per-gpu-hour", type=number(Range(0.0)), metavar="USD", help=help)
    parser.add_argument("--usd-per-hour", type=_renamed, help=argparse.SUPPRESS)
    add_gpu_memory(parser)
    add_config_dir(parser)
    parser.epilog = "hardware=OPTION among the paths: price and memory of that machine; runs on other GPUs are left out"


def _hardware(words: list[str], config_dir: str | None) -> Hardware:
    from memlab.cli.compose import compose_config

    return compose_config(["mode=predict", *words], config_dir)[0].hardware


def _renamed(_: str) -> None:
    raise argparse.ArgumentTypeError("it is now --usd-per-gpu-hour, the price of one GPU")


def run(arguments: argparse.Namespace) -> int:
    from memlab.analyse.advise import TrainingGoal, advise
    from memlab.report.advice_text import show_advice
    from memlab.report.text import console

    words = [path for path in arguments.paths if path.startswith(HARDWARE)]
    hardware = _hardware(words, arguments.config_dir) if words else Hardware()
    paths = [path for path in arguments.paths if path not in words]
    price = arguments.usd_per_gpu_hour
    training = TrainingGoal(
        samples=arguments.samples,
        epochs=arguments.epochs,
        tokens=arguments.seq_len,
        effective_batch=arguments.effective_batch,
        usd_per_gpu_hour=hardware.usd_per_gpu_hour if price is None else price,
        memory_gib=arguments.gpu_memory or hardware.memory_gib,
        gpu=hardware.gpu,
    )
    show_advice(advise(selected(paths, arguments.where, of_points=True), training), console())
    return 0
