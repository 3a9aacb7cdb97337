"""``memlab predict [options] [hardware words] -- COMMAND WORDS...``: will a training command of your own fit?"""

import argparse
import os
import sys
from pathlib import Path

from memlab.cli.commands.measure import new_folder
from memlab.cli.commands.number_types import whole
from memlab.cli.compose import compose_config
from memlab.cli.exit_codes import EXIT_CODES
from memlab.core.errors import FolderError, MemlabError
from memlab.core.record import Record
from memlab.predict.trace import own_stand_ins
from memlab.system import sandbox

USAGE = "memlab predict [options] hardware=OPTION -- COMMAND WORDS..."

OWN_TRAINING = "(memlab's own training: python launch.py mode=predict GROUP=OPTION...)"

TIMEOUT_S = 1800
"""Default of ``--timeout``: many times what scripts of 8B models take, with time for preprocessing their data."""

EFFECTS = (
    "memlab: the script's code runs, on tensors without memory and in a sandbox: what it writes, deletes and sends has "
    "no effect, and is listed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = USAGE
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="the run folder (default: a new one below outputs/)"
    )
    help = "run the first N optimizer steps alone (default: the first ones and the dearest of the epoch, then the end)"
    parser.add_argument("--steps", type=whole(1), metavar="N", help=help)
    help = f"end the script if it has not ended after S seconds (default: {TIMEOUT_S:,})"
    parser.add_argument("--timeout", type=whole(1), metavar="S", default=TIMEOUT_S, help=help)
    help = "predict what single changes of the command would save, also if it fits"
    parser.add_argument("--changes", action="store_true", help=help)
    parser.add_argument("--force", action="store_true", help="replace an earlier run in the folder")
    help = "stand-ins of your own for packages and operators, NAME.py (docs/your_own_command.md)"
    chosen = os.environ.get(own_stand_ins.VARIABLE)
    parser.add_argument("--stand-ins", type=Path, metavar="FOLDER", default=chosen and Path(chosen), help=help)
    help = "let the script connect to other machines, to read its data (default: it cannot)"
    parser.add_argument("--network", action="store_true", help=help)
    help = "the GPUs: hardware=a100_80g_x8 hardware.gpus=4; after --, the command as you type it without memlab"
    parser.add_argument("hardware", nargs="*", metavar="hardware=OPTION", help=help)


def run(arguments: argparse.Namespace) -> int:
    from memlab.planner.user_command import predict_command
    from memlab.predict.memory.verdicts import FITS
    from memlab.report.command_prediction_text import assumption_sentences
    from memlab.report.command_progress import CommandProgress
    from memlab.report.run_text import show_run
    from memlab.report.text import console, say
    from memlab.runs.folder import RunFolder

    hardware, command = arguments.hardware, arguments.training
    if not command:
        raise MemlabError(f"No command to predict: it comes after --. {USAGE} {OWN_TRAINING}")
    if others := [word for word in hardware if not word.startswith(("hardware=", "hardware."))]:
        raise MemlabError(f"{others[0]}: before -- come only memlab's options and the words of the hardware. {USAGE}")
    if arguments.network:
        os.environ[sandbox.NETWORK] = sandbox.OPEN
    if arguments.stand_ins is not None:
        own_stand_ins.choose(arguments.stand_ins)
    config, _ = compose_config(["mode=predict", "training=command", "training.command=''", *hardware])
    folder = RunFolder(arguments.output or new_folder(command))
    if folder.holds_result() and not arguments.force:
        raise FolderError(f"{folder} holds an earlier run. Choose another --output, or replace it with --force.")
    print(EFFECTS, file=sys.stderr)

    def wants_changes(record: Record) -> bool:
        return arguments.changes or record.summary["verdict"] != FITS

    with CommandProgress(folder, console(sys.stderr), arguments.timeout) as progress:
        record = predict_command(
            command,
            config.hardware,
            folder,
            arguments.steps,
            wants_changes,
            progress.begin_change,
            arguments.timeout,
        )
    output = console(sys.stdout)
    show_run(record, output)
    for sentence in assumption_sentences(record):
        say(sentence, output)
    output.print(f"run folder: {folder}", soft_wrap=True)
    return EXIT_CODES[record.status]
