"""A process of its own that outlives memlab by a moment: it ends what memlab started if memlab itself is killed.

``python deadman.py TOKEN GRACE_S``, with a pipe from memlab as its standard input. When the pipe closes without the
word ``done``, memlab is gone: every process that carries the token is told to end, and killed if it has not within
GRACE_S seconds. srun and mpirun use them to end the ranks on other hosts. Needs nothing but the standard library.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TOKEN_VARIABLE = "MEMLAB_LAUNCH"
"""The environment variable that marks every process of a launch, whatever group or session it moves to."""

DONE = b"done\n"

EXEC_S = 1.0
"""How long a process may stay inside exec(2) before it is taken for one that is not marked."""
NOT_A_PROGRAM = 0x00200000 | 0x00000004
"""Flags of a kernel thread and of a process on its way out (Linux: PF_KTHREAD, PF_EXITING of include/linux/sched.h)."""


def marked(token: str) -> Iterator[int]:
    """Process ids of the living processes of a launch."""
    return marked_by(TOKEN_VARIABLE, token)


def marked_by(variable: str, value: str) -> Iterator[int]:
    """Process ids of those started with this environment variable (Linux: /proc; a zombie has no environment left)."""
    wanted = f"{variable}={value}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = variables_of(entry)
            except OSError:  # gone, or somebody else's
                continue
            if wanted in variables:
                yield int(entry.name)


def variables_of(process: Path) -> list[bytes]:
    """The variables (``NAME=value``) that a process was started with; ``process``: its folder in /proc.

    Inside exec(2) a process has none to show, and whoever started it goes on already: it is waited for, since a process
    that is overlooked then is never ended.
    """
    environ = process / "environ"
    variables = environ.read_bytes()
    if not variables:
        deadline = time.monotonic() + EXEC_S
        while _is_inside_exec(process) and time.monotonic() < deadline:
            time.sleep(0.001)
        variables = environ.read_bytes()
    return variables.split(b"\0")


def _is_inside_exec(process: Path) -> bool:
    """Whether its new memory has no environment yet (proc_pid_stat(5): the fields state, flags and env_end)."""
    fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    state, flags, env_end = fields[0], int(fields[6]), int(fields[48])
    return state not in "ZX" and not flags & NOT_A_PROGRAM and env_end == 0


def kill_marked(token: str, wait_s: float = 10.0) -> list[int]:
    """SIGKILL every process of a launch until none is left. Returns those that would not die within ``wait_s``."""
    deadline = time.monotonic() + wait_s
    while alive := list(marked(token)):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return alive
        time.sleep(0.05)
    return []


def terminate_marked(token: str, grace_s: float) -> None:
    """SIGTERM every process of a launch, and wait at most so long until none is left."""
    deadline = time.monotonic() + grace_s
    for pid in marked(token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while time.monotonic() < deadline and any(True for _ in marked(token)):
        time.sleep(0.05)


def end_marked(token: str, grace_s: float) -> list[int]:
    """End every process of a launch: told to, if it has a grace, then killed. Returns those that would not die."""
    if grace_s:
        terminate_marked(token, grace_s)
    return kill_marked(token)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    token, grace_s = sys.argv[1], float(sys.argv[2])
    if sys.stdin.buffer.read() != DONE:
        end_marked(token, grace_s)


if __name__ == "__main__":
    main()
