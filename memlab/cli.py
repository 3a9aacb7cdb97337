"""The two ways in: ``python launch.py`` (Hydra: one experiment or a sweep) and ``memlab COMMAND`` (the run folders)."""

import argparse
import contextlib
import errno
import importlib
import keyword
import os
import signal
import sys
from collections.abc import Sequence

from memlab.errors import MemlabError

COMMANDS = {
    "run": "measure or predict one experiment, or with -m a sweep of them (the same as launch.py)",
    "doctor": "check this machine before it is paid for: GPUs, versions, compiler, disk; build DeepSpeed's ops",
    "show": "print the table of a run folder",
    "table": "run folders as one table: a row a point, or a row a rank, phase or step",
    "diff": "what differs between runs, and what it did to memory, speed and cost",
    "fit": "memory as a line over tokens for each configuration, and what is the longest that fits",
    "advise": "the configuration to train with: fastest, cheapest, with headroom",
    "figures": "charts for print, PNG and SVG: memory, speed, phases, fit, cost, overlays",
    "report": "one HTML page that opens anywhere: summary, table, charts, details, diff of any two runs",
    "import": "other people's tables as run folders",
}
"""Sub-command -> help. Each is a module of memlab.commands, imported when it is used."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run with its record written and no process left."""

INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> None:
    """The console script ``memlab``."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        sys.argv = ["memlab run", *words[1:]]
        launch()
        return
    parser = argparse.ArgumentParser(prog="memlab", description="What fits, how fast is it, what does it cost.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = words[0] if words and words[0] in COMMANDS else None
    for name, help in COMMANDS.items():
        sub = commands.add_parser(name, help=help, description=help)
        if name == wanted:  # only the one that is used is imported
            module = importlib.import_module(f"memlab.commands.{name}{'_' * keyword.iskeyword(name)}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    arguments = parser.parse_args(words)
    sys.exit(_guarded(lambda: arguments.run(arguments)))


def launch() -> None:
    """``launch.py``: Hydra composes, memlab runs."""
    refuse_to_run_inside_a_launcher()
    from memlab.hydra_app import run_hydra

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    sys.exit(_guarded(run_hydra))


def refuse_to_run_inside_a_launcher() -> None:
    """memlab starts the ranks itself. Under torchrun or deepspeed, every rank would start as many again."""
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


def _guarded(function) -> int:
    """Run, and turn what a person did wrong into one line."""
    try:
        return function() or 0
    except MemlabError as error:
        print(f"memlab: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        print(f"memlab: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("memlab: interrupted", file=sys.stderr)
        return INTERRUPTED


def _interrupt(number, frame) -> None:
    """The first signal ends the run; those after it would only interrupt the ending, and lose the record."""
    for ending in ENDING:
        signal.signal(ending, _go_on_ending)
    raise KeyboardInterrupt


def _go_on_ending(number, frame) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"memlab: ending what was started; a moment\n")
