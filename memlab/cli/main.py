"""The two entry points: ``python launch.py`` (one experiment or a sweep, with Hydra) and ``memlab COMMAND``."""

import argparse
import atexit
import gc
import importlib
import keyword
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NoReturn

from memlab.cli.bug_report import report_bug
from memlab.core.errors import MemlabError, nearest
from memlab.files.disk import DISK_FULL, explain
from memlab.system.signals import end_on_signals
from memlab.system.terminal import safe

COMMANDS = {
    "run": "measure or predict one experiment or, with -m, a sweep (the same as launch.py)",
    "measure": "measure a training command of your own, unmodified: memlab measure -- deepspeed train.py ...",
    "predict": "predict a training command of your own, unmodified and without a GPU: will it fit?",
    "plan": "predict, before renting, which configurations fit and with which largest batch",
    "doctor": "check this machine before a run: GPUs, versions, compiler, disk; build DeepSpeed's ops",
    "show": "print memory, speed and status of a run, or the table of a sweep",
    "explain": "say where every byte goes: from the driver's figure to the line of code",
    "table": "print run folders as one table: a row for each run, rank, phase or step",
    "diff": "compare runs: what differs, and its effect on memory, speed and cost",
    "fit": "fit memory over tokens for each configuration, and compute the longest sequence that fits",
    "advise": "recommend the configuration for a training: the fastest, the cheapest, and their free memory",
    "figures": "draw charts for print as PNG and SVG: memory, speed, phases, fit, cost, overlays",
    "report": "write one HTML page that opens anywhere: summary, table, charts, details, diff of any two runs",
    "import": "convert other people's tables to run folders",
}
"""Sub-command -> help text. Each sub-command is a module of memlab.cli.commands, imported only when it is used."""

YOUNG_OBJECTS = 50_000
"""New objects after which Python looks for garbage in reference cycles, instead of some hundreds: traces and rows are
many objects without cycles, and looking through them takes a fifth of the time of a prediction that traces nothing."""

INTERRUPTED = 130  # the exit code that shells report for a process ended by Ctrl-C


def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script ``memlab``."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        sys.argv = ["memlab run", *words[1:]]
        launch()
        return
    sys.exit(guarded(lambda: _command(words)))


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line; its sub-parsers do the same."""

    def error(self, message: str) -> NoReturn:
        raise MemlabError(f"{message} ({self.prog} --help lists the options)")


def _command(words: list[str]) -> int:
    """Run the sub-command that ``words`` begin with. Returns the exit code."""
    parser = _Parser(prog="memlab", description="What fits, how fast it is, and what it costs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        raise MemlabError(f"No command '{words[0]}'. {nearest(words[0], COMMANDS)}")
    wanted = words[0] if words and words[0] in COMMANDS else None
    for name, help in COMMANDS.items():
        sub = commands.add_parser(name, help=help, description=help)
        if name == wanted:  # import only the module of the chosen sub-command
            module = importlib.import_module(f"memlab.cli.commands.{name}{'_' * keyword.iskeyword(name)}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    arguments, unknown = _parsed(parser, words, wanted in ("measure", "predict"))
    if unknown:
        hint = f"memlab {arguments.command} --help lists the options"
        if arguments.command == "predict" and arguments.training is None:
            hint = "put -- before the training command"
        elif not any(word.startswith("-") for word in unknown):
            hint = "put positional arguments before the options"
        elif unknown[0].startswith("--hardware"):
            hint = "hardware is a word without dashes: hardware=a100_80g_x8"
        elif meant := get_close_matches(unknown[0], commands.choices[arguments.command]._option_string_actions):
            hint = f"did you mean {meant[0]}?"
        raise MemlabError(f"unrecognized arguments: {' '.join(unknown)} ({hint})")
    end_on_signals()
    return arguments.run(arguments)


def _parsed(
    parser: argparse.ArgumentParser, words: list[str], takes_command: bool
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the words. ``training``: those of a training command, behind memlab's own ``--``; ``None`` without it.

    A ``--`` behind the first word of the command is the command's own: ``memlab measure launcher train.py -- --lr 1``.
    """
    if takes_command and "--" in words:
        here = words.index("--")
        arguments, unknown = parser.parse_known_args(words[:here], argparse.Namespace(training=words[here + 1 :]))
        if not getattr(arguments, "words", None):
            return arguments, unknown
    return parser.parse_known_args(words, argparse.Namespace(training=None))


def launch() -> None:
    """Run ``launch.py``: Hydra composes the configuration, memlab runs it."""
    sys.exit(guarded(_launch))


def _launch() -> int:
    refuse_to_run_inside_a_launcher()
    from memlab.cli.hydra_app import run_hydra

    end_on_signals()
    return run_hydra()


def refuse_to_run_inside_a_launcher() -> None:
    """Exit with code 2 under srun with several tasks, torchrun or deepspeed.

    memlab starts the ranks itself: inside such a launcher, every rank would start a whole set of ranks again.
    """
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    rank = os.environ.get("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK"))
    if tasks.isdecimal() and int(tasks) > 1:
        is_first, how = os.environ.get("SLURM_PROCID") == "0", "srun started memlab in several tasks"
        instead = "'srun --ntasks=1 python launch.py ...', or omit srun inside an allocation."
    elif rank is not None:
        is_first = rank == "0" and os.environ.get("RANK", "0") == "0"
        how = "a distributed launcher started memlab (LOCAL_RANK is set)"
        instead = "'python launch.py ...', not 'deepspeed launch.py' or 'torchrun launch.py'."
    else:
        return
    if is_first:
        print(f"memlab: {how}. memlab starts the ranks itself: run {instead}", file=sys.stderr)
    sys.exit(2)


def guarded(function: Callable[[], int | None]) -> int:
    """Call ``function`` and return the exit code. Print a user's mistake in one line, a bug of memlab in three."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as with >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # else Python searches everything once more before it ends
    try:
        return function() or 0
    except MemlabError as error:
        print(f"memlab: {safe(error)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the program that reads our output has ended
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:  # no path that the user could change: a bug
            return report_bug(error)
        print(f"memlab: {safe(explain(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("memlab: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return report_bug(error)
