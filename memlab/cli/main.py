"""The two entry points: ``python launch.py`` (one experiment or a sweep, with Hydra) and ``memlab COMMAND``."""

import argparse
import importlib
import keyword
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from memlab.core.errors import MemlabError
from memlab.files.disk import DISK_FULL, explain
from memlab.system.signals import end_on_signals
from memlab.system.terminal import safe

COMMANDS = {
    "run": "measure or predict one experiment, or with -m a sweep of them (the same as launch.py)",
    "plan": "before renting: what fits, by prediction, over zero_stage, offload, checkpointing, allocator and batch",
    "doctor": "check this machine before it is paid for: GPUs, versions, compiler, disk; build DeepSpeed's ops",
    "show": "print the table of a run folder",
    "table": "run folders as one table: a row a point, or a row a rank, phase or step",
    "diff": "what differs between runs, and what it did to memory, speed and cost",
    "fit": "memory as a line over tokens for each configuration, and what is the longest that fits",
    "advise": "the configuration to train with: fastest, cheapest, with headroom",
    "figures": "charts for print, PNG and SVG: memory, speed, phases, fit, cost, overlays",
    "report": "one HTML page that opens anywhere: summary, table, charts, details, diff of any two runs",
    "accuracy": "predict what was measured, and publish how far off that is",
    "families": "predict a small model of every family that transformers knows: which work, and why others do not",
    "import": "other people's tables as run folders",
}
"""Sub-command -> help text. Each sub-command is a module of memlab.cli.commands, imported only when it is used."""

INTERRUPTED = 130  # the exit code that shells report for a process ended by Ctrl-C


def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script ``memlab``."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        sys.argv = ["memlab run", *words[1:]]
        launch()
        return
    sys.exit(_guarded(lambda: _command(words)))


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line; its sub-parsers do the same."""

    def error(self, message: str) -> NoReturn:
        raise MemlabError(f"{message} ({self.prog} --help lists the options)")


def _command(words: list[str]) -> int:
    """Run the sub-command that ``words`` begin with. Returns the exit code."""
    parser = _Parser(prog="memlab", description="What fits, how fast is it, what does it cost.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = words[0] if words and words[0] in COMMANDS else None
    for name, help in COMMANDS.items():
        sub = commands.add_parser(name, help=help, description=help)
        if name == wanted:  # import only the module of the chosen sub-command
            module = importlib.import_module(f"memlab.cli.commands.{name}{'_' * keyword.iskeyword(name)}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    arguments = parser.parse_args(words)
    end_on_signals()
    return arguments.run(arguments)


def launch() -> None:
    """Run ``launch.py``: Hydra composes the configuration, memlab runs it."""
    sys.exit(_guarded(_launch))


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
    if tasks.isdecimal() and int(tasks) > 1:
        if os.environ.get("SLURM_PROCID") == "0":
            print(
                "memlab: started by srun in several tasks at once. memlab starts the ranks itself: run "
                "'srun --ntasks=1 python launch.py ...', or leave srun out inside an allocation.",
                file=sys.stderr,
            )
        sys.exit(2)
    rank = os.environ.get("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK"))
    if rank is None:
        return
    if rank == "0" and os.environ.get("RANK", "0") == "0":
        print(
            "memlab: started inside a distributed launcher (LOCAL_RANK is set). memlab starts the ranks itself: run "
            "'python launch.py ...', not 'deepspeed launch.py' or 'torchrun launch.py'.",
            file=sys.stderr,
        )
    sys.exit(2)


def _guarded(function: Callable[[], int | None]) -> int:
    """Call ``function`` and return the exit code. Print a user's mistake in one line, a bug of memlab in three."""
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
            return _unexpected(error)
        print(f"memlab: {safe(explain(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("memlab: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    from memlab.cli.bug_report import report_bug

    report_bug(error)
    return os.EX_SOFTWARE
