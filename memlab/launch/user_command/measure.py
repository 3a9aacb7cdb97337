"""``memlab measure``: one command of the user's own, run in the terminal as it is, and its run folder."""

import math
import os
import shlex
import shutil
from collections.abc import Sequence

from memlab.core.attached import first_engine
from memlab.core.errors import FolderError, MemlabError
from memlab.core.plan import Plan
from memlab.core.record import Record
from memlab.core.run_id import run_id
from memlab.launch.orphans import exclusively
from memlab.launch.streams import ToTerminal
from memlab.launch.user_command.found_config import found_config
from memlab.launch.user_command.records import command_record
from memlab.launch.user_command.supervise import Command, Finished, supervise
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job
from memlab.runs.operator_profile import PROFILED_RANK, keep_operators
from memlab.system.machine import detect

NOT_FOUND = 127
"""Exit code of a shell for a command that does not exist."""


class CommandNotFound(MemlabError):
    """The first word of the command is no program."""

    exit_code = NOT_FOUND


def check_program(words: Sequence[str]) -> None:
    """Raise :class:`CommandNotFound` if the first word of a command is no program."""
    if shutil.which(words[0]) is None:
        raise CommandNotFound(f"{words[0]}: no such program on the PATH. After -- comes the command as you type it.")


def measure(
    words: Sequence[str],
    folder: RunFolder,
    steps: int | None,
    timeout_s: float | None,
    force: bool = False,
    explain: int | None = None,
    explain_ranks: tuple[int, ...] = (),
    profile: int | None = None,
    explain_oom: bool = False,
) -> Record:
    """Run the command and write its run folder.

    ``steps``: end after this many optimizer steps. ``timeout_s``: end it after so many seconds. ``force``: replace an
    earlier run in the folder. ``explain``: record torch's memory history until the end of this step, on the
    ``explain_ranks`` (none named: on all ranks); ``explain_oom``: and go on for an out-of-memory. ``profile``: run
    torch's profiler in the steps after this one. Raises :class:`MemlabError` before anything runs.
    """
    check_program(words)
    folder.check()
    if folder.holds_result() and not force:
        raise FolderError(
            f"{folder} holds an earlier run: nothing was started. Choose another --output, or replace it with --force."
        )
    job = Job(plan_of(words), folder)
    with exclusively(job):
        job.start(list(words))
        streams = ToTerminal(folder.launcher_log)
        limit = math.inf if timeout_s is None else timeout_s
        command = Command(words, os.environ, streams, steps, explain, explain_ranks, profile, explain_oom)
        finished = supervise(command, folder, lambda: limit)
        record = write_record(finished, folder, words, steps)
        keep_operators(folder, PROFILED_RANK)
        return record


def write_record(finished: Finished, folder: RunFolder, words: Sequence[str], steps: int | None = None) -> Record:
    """Write the record of a training that is over, which ends its run folder."""
    found = found_config(finished.ranks, finished.rows, shlex.join(words))
    record = command_record(finished, found, words, steps, detect())
    keep_what_was_found(finished.ranks, folder)
    folder.finish(record)
    return record


def plan_of(words: Sequence[str]) -> Plan:
    """Make the plan of a command that memlab did not compose: little more than the command is known before it runs."""
    asked = found_config([], {}, shlex.join(words))
    return Plan(
        run_id=run_id(asked.config, asked.unknown),
        config=asked.config,
        choices=asked.choices,
        world_size=1,
        deepspeed={},
        training_args={},
        environment={},
        unknown_config=list(asked.unknown),
    )


def keep_what_was_found(ranks: Sequence[dict], folder: RunFolder) -> None:
    """Write the DeepSpeed JSON and the training arguments that the script used, where a run of memlab has its own.

    The files of the ranks are written again, without secrets: a rank blanks only what has a secret's name.
    """
    facts = ranks[0]["attached"] if ranks else {}
    folder.write_inputs(
        first_engine(facts).get("config") or {}, (facts.get("training_arguments") or {}).get("values") or {}
    )
    folder.write_ranks(ranks)
