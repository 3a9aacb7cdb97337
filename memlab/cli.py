"""The two ways in: ``python launch.py`` (Hydra: one experiment or a sweep) and ``memlab COMMAND`` (the run folders)."""

import argparse
import importlib
import keyword
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from memlab.disk import DISK_FULL, explain
from memlab.errors import MemlabError
from memlab.signals import end_on_signals
from memlab.terminal import safe

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
"""Sub-command -> help. Each is a module of memlab.commands, imported when it is used."""

INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> None:
    """The console script ``memlab``."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        sys.argv = ["memlab run", *words[1:]]
        launch()
        return
    sys.exit(_guarded(lambda: _command(words)))


class _Parser(argparse.ArgumentParser):
    """A parser, and those of its sub-commands, that refuse a command line in one line."""

    def error(self, message: str) -> NoReturn:
        raise MemlabError(f"{message} ({self.prog} --help lists the options)")


def _command(words: list[str]) -> int:
    """Run the sub-command that ``words`` begin with."""
    parser = _Parser(prog="memlab", description="What fits, how fast is it, what does it cost.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = words[0] if words and words[0] in COMMANDS else None
    for name, help in COMMANDS.items():
        sub = commands.add_parser(name, help=help, description=help)
        if name == wanted:  # only the one that is used is imported
            module = importlib.import_module(f"memlab.commands.{name}{'_' * keyword.iskeyword(name)}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    arguments = parser.parse_args(words)
    end_on_signals()
    return arguments.run(arguments)


def launch() -> None:
    """``launch.py``: Hydra composes, memlab runs."""
    sys.exit(_guarded(_launch))


def _launch() -> int:
    refuse_to_run_inside_a_launcher()
    from memlab.hydra_app import run_hydra

    end_on_signals()
    return run_hydra()


def refuse_to_run_inside_a_launcher() -> None:
    """memlab starts the ranks itself. Under torchrun or deepspeed, every rank would start as many again."""
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
    """Run, and turn what a person did wrong into one line, and a bug of memlab's into three. Returns the exit code."""
    try:
        return function() or 0
    except MemlabError as error:
        print(f"memlab: {safe(error)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:  # no path that a person could choose differently
            return _unexpected(error)
        print(f"memlab: {safe(explain(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("memlab: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    from memlab.bug_report import report_bug

    report_bug(error)
    return os.EX_SOFTWARE
