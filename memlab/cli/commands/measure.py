"""``memlab measure [options] -- COMMAND WORDS...``: measure a training command of your own, unmodified."""

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from memlab.cli.commands.run_selection import OUTPUTS, add_all
from memlab.cli.commands.shared_arguments import add_output, whole
from memlab.cli.exit_codes import exit_code
from memlab.core.errors import MemlabError

EXPLAINED_STEP = 3
"""Step until whose end the memory history is recorded: the first one differs from the later ones."""

PROFILED_AFTER = 5
"""Step after which the profiler runs: by then the caches and pools of a training are usually filled."""

USAGE = "memlab measure [options] -- COMMAND WORDS..."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = USAGE
    add_output(parser)
    help = "end after N optimizer steps, on all ranks at once and with exit code 0"
    parser.add_argument("--steps", type=whole(1), metavar="N", help=help)
    parser.add_argument("--timeout", type=whole(1), metavar="S", help="end the command after S seconds")
    help = "record what allocates the memory until the end of step N (default: 3), for memlab explain"
    parser.add_argument("--explain", type=whole(1), metavar="N", nargs="?", const=EXPLAINED_STEP, help=help)
    help = "ranks that --explain records (default: all)"
    parser.add_argument("--explain-ranks", type=whole(0), metavar="R", nargs="+", default=(), help=help)
    help = (
        "go on recording after the step of --explain, so that an out-of-memory in a later step has its lines of code; "
        "then no step has a time"
    )
    parser.add_argument("--explain-oom", action="store_true", help=help)
    help = (
        "run torch's profiler in the three steps after step N (default: 5), on rank 0, for memlab explain --time; the "
        "times of these steps are left out"
    )
    parser.add_argument("--profile", type=whole(1), metavar="N", nargs="?", const=PROFILED_AFTER, help=help)
    parser.add_argument("--force", action="store_true", help="replace an earlier run in the folder")
    add_all(parser)
    help = "the command and its words, as you type them without memlab"
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND WORDS...", help=help)


def run(arguments: argparse.Namespace) -> int:
    from memlab.launch.user_command.measure import measure
    from memlab.meters.options import PROFILED_STEPS, PROFILER_WARMUP, MeterOptions
    from memlab.report.details_text import show_answer
    from memlab.report.text import console
    from memlab.runs.folder import RunFolder

    words = arguments.words if arguments.training is None else arguments.training
    if not words:
        raise MemlabError(f"No command to measure. {USAGE}")
    last_profiled = arguments.profile and arguments.profile + PROFILER_WARMUP + PROFILED_STEPS
    if last_profiled and arguments.steps and arguments.steps < last_profiled:
        raise MemlabError(f"--profile {arguments.profile} needs {last_profiled} steps, and --steps ends after fewer.")
    if arguments.explain_ranks and not arguments.explain:
        raise MemlabError("--explain-ranks chooses the ranks of --explain: add --explain.")
    if arguments.explain_oom and not arguments.explain:
        raise MemlabError("--explain-oom goes on with the recording of --explain: add --explain.")
    folder = RunFolder(arguments.output or new_folder(words))
    options = MeterOptions(
        steps=arguments.steps,
        explain=arguments.explain,
        explain_ranks=tuple(arguments.explain_ranks),
        profile=arguments.profile,
        explain_oom=arguments.explain_oom,
    )
    record = measure(words, folder, options, arguments.timeout, arguments.force)
    show_answer(record, folder, console(sys.stderr), arguments.all)  # standard output is the command's
    of_command = record.command.get("exit_code")
    if of_command is None or "verdict" in record.summary:
        return exit_code(record)
    return of_command if of_command >= 0 else 128 - of_command  # as a shell reports a signal


def new_folder(words: Sequence[str]) -> Path:
    """Name a folder by the day, the script and the time of day."""
    scripts = [Path(word).stem for word in words if word.endswith(".py")]
    name = re.sub(r"[^\w.]+", "_", scripts[0] if scripts else Path(words[0]).name)
    now = datetime.datetime.now()
    return OUTPUTS / f"{now:%Y-%m-%d}" / f"{name}-{now:%H%M%S}"
