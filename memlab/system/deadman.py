"""The deadman: a separate process that ends the processes of a launch if memlab itself is killed.

memlab starts ``python deadman.py TOKEN GRACE_S`` with a pipe as its standard input. If the pipe closes without the word
``done``, memlab is gone. The deadman then sends SIGTERM to every process that carries the token, and SIGKILL after
GRACE_S seconds. srun and mpirun use these seconds to end the ranks on other hosts. Last, it removes the scratch folders
of the launch (memlab/system/sandbox). This file imports only the standard library.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

TOKEN_VARIABLE = "MEMLAB_LAUNCH"
"""The environment variable that marks every process of a launch, whatever group or session it moves to."""

DONE = b"done\n"

SCRATCH = "memlab-scratch-"
"""Prefix of the name of a scratch folder. The token of its launch follows."""
SCRATCH_PLACES = (Path(tempfile.gettempdir()), Path("/dev/shm"))

EXEC_S = 1.0
"""Seconds that a process may stay inside exec(2) before it counts as not marked."""
NOT_A_PROGRAM = 0x00200000 | 0x00000004
"""Flags of a kernel thread and of an exiting process (Linux: PF_KTHREAD, PF_EXITING of include/linux/sched.h)."""


def marked(token: str) -> Iterator[int]:
    """Yield the ids of the living processes of a launch."""
    return marked_by(TOKEN_VARIABLE, token)


def marked_by(variable: str, value: str) -> Iterator[int]:
    """Yield the ids of processes that were started with this environment variable (Linux: /proc), without zombies."""
    wanted = f"{variable}={value}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = variables_of(entry)
            except OSError:  # the process has ended or belongs to another user
                continue
            if wanted in variables:
                yield int(entry.name)


def variables_of(process: Path) -> list[bytes]:
    """Return the variables (``NAME=value``) that a process was started with; ``process``: its folder in /proc.

    Inside exec(2) the environment of a process reads as empty. This function waits up to ``EXEC_S`` seconds for the end
    of exec(2), because a process that is overlooked would never be ended.
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
    """Whether the process has no environment yet after exec(2) (proc_pid_stat(5): fields state, flags, env_end)."""
    fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    state, flags, env_end = fields[0], int(fields[6]), int(fields[48])
    return state not in "ZX" and not flags & NOT_A_PROGRAM and env_end == 0


def kill_marked(token: str, wait_s: float = 10.0, variable: str = TOKEN_VARIABLE) -> list[int]:
    """Send SIGKILL to every process of a launch until none is left. Returns the ids of survivors after ``wait_s``.

    ``variable``: the environment variable whose value is ``token``.
    """
    deadline = time.monotonic() + wait_s
    while alive := list(marked_by(variable, token)):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return alive
        time.sleep(0.05)
    return []


def terminate_marked(token: str, grace_s: float) -> None:
    """Send SIGTERM to every process of a launch, and wait up to ``grace_s`` seconds until none is left."""
    deadline = time.monotonic() + grace_s
    for pid in marked(token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while time.monotonic() < deadline and any(True for _ in marked(token)):
        time.sleep(0.05)


def end_marked(token: str, grace_s: float) -> list[int]:
    """End every process of a launch: SIGTERM if ``grace_s`` is not 0, then SIGKILL. Returns the ids of survivors."""
    if grace_s:
        terminate_marked(token, grace_s)
    return kill_marked(token)


@contextlib.contextmanager
def guarded(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the variables with the token of a new launch, whose processes end with the block, however it ends.

    They end when an exception leaves the block, and when this process is killed.
    """
    token = uuid.uuid4().hex
    words = [sys.executable, "-I", "-S", __file__, token, "0"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as watcher:
        try:
            yield {**environ, TOKEN_VARIABLE: token}
        finally:
            kill_marked(token)
            watcher.communicate(DONE)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    token, grace_s = sys.argv[1], float(sys.argv[2])
    if sys.stdin.buffer.read() != DONE:
        end_marked(token, grace_s)
        for place in SCRATCH_PLACES:
            for folder in place.glob(f"{SCRATCH}{token}-*"):
                remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder of this user's, with what is in it, whatever its permissions."""

    def allow(function: Callable[..., object], path: str, _: object) -> None:
        if os.path.lexists(path):
            for each in (path, os.path.dirname(path)):
                if Path(each).is_relative_to(folder) and not os.path.islink(each):
                    os.chmod(each, 0o700)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    shutil.rmtree(folder, onerror=allow)


if __name__ == "__main__":
    main()
