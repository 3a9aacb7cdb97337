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


def marked(token: str) -> Iterator[int]:
    """Process ids of the living processes of a launch."""
    return marked_by(TOKEN_VARIABLE, token)


def marked_by(variable: str, value: str) -> Iterator[int]:
    """Process ids of those started with this environment variable (Linux: /proc; a zombie has no environment left)."""
    wanted = f"{variable}={value}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # gone, or somebody else's
                continue
            if wanted in variables:
                yield int(entry.name)


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


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    token, grace_s = sys.argv[1], float(sys.argv[2])
    if sys.stdin.buffer.read() != DONE:
        if grace_s:
            terminate_marked(token, grace_s)
        kill_marked(token)


if __name__ == "__main__":
    main()
