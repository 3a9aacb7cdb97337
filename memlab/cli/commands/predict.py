"""``memlab predict [options] [hardware words] -- COMMAND WORDS...``: will a training command of your own fit?"""

import argparse
import os
import shlex
import sys
from difflib import get_close_matches
from pathlib import Path

from memlab.cli.commands.measure import new_folder
from memlab.cli.commands.run_selection import add_all
from memlab.cli.commands.shared_arguments import HARDWARE, add_config_dir, add_output, whole
from memlab.cli.compose import compose_config
from memlab.cli.exit_codes import exit_code
from memlab.core.errors import MemlabError
from memlab.core.record import Record
from memlab.files.conf_files import options_of
from memlab.simulator import own_stand_ins
from memlab.system import sandbox

USAGE = "memlab predict [options] hardware=OPTION -- COMMAND WORDS..."

OWN_TRAINING = "(memlab's own training: python launch.py mode=predict GROUP=OPTION...)"

TIMEOUT_S = 1800
"""Default of ``--timeout``: many times what scripts of 8B models take, with time for preprocessing their data."""

EFFECTS = "memlab: the script runs on tensors without memory, in a sandbox: it changes and sends nothing."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = USAGE
    add_output(parser)
    help = (
        "run only the first N optimizer steps (default: the first steps, the largest batches of the epoch, then what "
        "follows training)"
    )
    parser.add_argument("--steps", type=whole(1), metavar="N", help=help)
    help = f"end the script if it has not ended after S seconds (default: {TIMEOUT_S:,})"
    parser.add_argument("--timeout", type=whole(1), metavar="S", default=TIMEOUT_S, help=help)
    help = "predict what single changes of the command would save, also if it fits"
    parser.add_argument("--changes", action="store_true", help=help)
    parser.add_argument("--force", action="store_true", help="replace an earlier run in the folder")
    add_all(parser)
    help = "stand-ins of your own for packages and operators, NAME.py (docs/your_own_command.md)"
    chosen = os.environ.get(own_stand_ins.VARIABLE)
    parser.add_argument("--stand-ins", type=Path, metavar="FOLDER", default=chosen and Path(chosen), help=help)
    help = "let the script connect to other machines, to read its data (default: it cannot)"
    parser.add_argument("--network", action="store_true", help=help)
    help = "run the script also where the system gives no wall around it (default: ask on a terminal, else refuse)"
    parser.add_argument("--unprotected", action="store_true", help=help)
    add_config_dir(parser)
    names = ", ".join(options_of("hardware"))
    help = f"hardware=a100_80g_x8 hardware.gpus=4; OPTION is one of {names}; then -- and the command as you type it"
    parser.add_argument("hardware", nargs="*", metavar="hardware=OPTION", help=help)


def run(arguments: argparse.Namespace) -> int:
    from memlab.core.record import FITS
    from memlab.launch.user_command.measure import job_in
    from memlab.planner.user_command import predict_command
    from memlab.report.command_progress import CommandProgress
    from memlab.report.details_text import show_answer, show_predicted_changes
    from memlab.report.text import console
    from memlab.runs.folder import RunFolder

    hardware, command = arguments.hardware, arguments.training
    others = [word for word in hardware if not word.startswith(HARDWARE)]
    if not command and others and "=" not in others[0]:
        raise MemlabError(f"Put -- before the training command: -- {shlex.join(others)}")
    if not command:
        raise MemlabError(f"No command to predict: it comes after --. {USAGE} {OWN_TRAINING}")
    if others:
        valid = "memlab's options and the words of the hardware, as in hardware=a100_80g_x8 hardware.gpus=4."
        meant = get_close_matches(others[0].partition("=")[0], ["hardware"])
        hint = f" Did you mean '{meant[0]}'?" if meant else ""
        raise MemlabError(f"{others[0]}: before -- come only {valid}{hint}")
    if arguments.network:
        os.environ[sandbox.NETWORK] = sandbox.OPEN
    if arguments.unprotected or _accepts_no_wall():
        os.environ[sandbox.WITHOUT_WALL] = sandbox.ALLOWED
    if arguments.stand_ins is not None:
        own_stand_ins.choose(arguments.stand_ins)
    words = ["mode=predict", "training=command", "training.command=''", *hardware]
    config, _ = compose_config(words, arguments.config_dir)
    folder = RunFolder(arguments.output or new_folder(command))
    job_in(folder, command, arguments.force)
    print(EFFECTS, file=sys.stderr)

    def wants_changes(record: Record) -> bool:
        leaks = record.command.get("growth", {}).get("agreed")  # no single change mends that
        return arguments.changes or (record.summary["verdict"] != FITS and not leaks)

    with CommandProgress(folder, console(sys.stderr)) as progress:
        record = predict_command(
            command, config.hardware, folder, arguments.steps, wants_changes, progress.begin_change, arguments.timeout
        )
    output = console(sys.stdout)
    show_answer(record, folder, output, arguments.all)
    if arguments.changes and not arguments.all:
        show_predicted_changes(record, output)
    return exit_code(record)


def _accepts_no_wall() -> bool:
    """Ask on a terminal whether the script may run without a wall, if the system gives none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        sandbox.check_wall(os.environ)
        return False
    except sandbox.SandboxError as error:
        if str(error) != sandbox.NO_WALL:
            raise
        print(f"memlab: {error}\nRun the script without a wall? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
