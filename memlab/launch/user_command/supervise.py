"""One command of the user's own: started with memlab's meters, watched, ended with all its processes, and read."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memlab.core.errors import FolderError
from memlab.files.disk import explained
from memlab.launch.launch_control import LaunchControl
from memlab.launch.orphans import noted
from memlab.launch.outcome import host_oom_kills, outcome
from memlab.launch.process import Ended, Launch
from memlab.launch.streams import Streams
from memlab.meters import install
from memlab.meters.options import MeterOptions
from memlab.runs.folder import RunFolder
from memlab.runs.step_rows import read_command
from memlab.system.deadman import remove_folder

LEAVE_S = 10.0
"""Seconds that the processes of a command may take to end by themselves: after its first process has ended, or after
a signal."""


@dataclass
class Finished:
    """A command that is over. ``exit_code``: ``None`` if memlab ended it. ``rows``: rank -> the rows of its steps."""

    seconds: float
    exit_code: int | None
    status: str
    reason: str | None
    ranks: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)


def supervise(
    words: Sequence[str],
    environment: Mapping[str, str],
    streams: Streams,
    options: MeterOptions,
    folder: RunFolder,
    timeout_s: float,
    control: LaunchControl,
) -> Finished:
    """Run a command to its end, ``timeout_s`` seconds at most.

    ``options``: what its ranks measure, and when they end. ``control`` may end it earlier. Raises :class:`FolderError`
    before anything runs if the meters cannot be put into the folder.
    """
    kills, token = host_oom_kills(), uuid.uuid4().hex
    with explained(FolderError, folder.path, "Nothing was started: "):
        options = replace(options, folder=str(folder.path), started_at=time.time())
        remove_folder(folder.own_folder(install.FOLDER))
        install.install(folder.path, options)
    environment = install.environment(environment, folder.path)
    with noted([folder], token), Launch(words, environment, streams, token) as launch:
        ended = None
        try:
            ended = launch.wait(lambda: timeout_s, lambda: None, control)
            if ended.how == "exited":
                launch.leave(LEAVE_S)
        except KeyboardInterrupt as signalled:
            launch.tell(_signal_to_pass_on(signalled, streams))
            launch.leave(LEAVE_S)
            ended = ended or Ended("interrupted", None, launch.seconds)
    ooms, warmup = host_oom_kills() - kills, options.warmup or 1
    finished = read_finished(folder, ended, ooms, install.has_loaded(folder.path), warmup)
    install.remove(folder.path)
    return replace(finished, survivors=launch.survivors)


def read_finished(folder: RunFolder, ended: Ended, host_ooms: int, has_loaded: bool, warmup: int = 1) -> Finished:
    """Read what the ranks of a command left. ``host_ooms``, ``has_loaded``: those of :func:`outcome`. ``warmup``: steps
    that only warm up."""
    ranks, rows = read_command(folder, warmup)
    status, reason = outcome(folder, ranks, ended, host_ooms, has_loaded=has_loaded)
    return Finished(ended.seconds, ended.returncode, status, reason, ranks, rows)


def _signal_to_pass_on(interrupt: KeyboardInterrupt, streams: Streams) -> int | None:
    """Return the signal that ended memlab; ``None`` for Ctrl-C in a terminal, which the command has got too."""
    number = interrupt.args[0] if interrupt.args else signal.SIGINT
    return None if number == signal.SIGINT and not streams.own_session and _is_in_front() else number


def _is_in_front() -> bool:
    """Whether this process is in the foreground of the terminal that it reads from."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
