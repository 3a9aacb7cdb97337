"""Calls in a forked copy of this process, which leave this process as it was: random states, generators, open files."""

import contextlib
import fcntl
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any

SLACK_S = 30.0
"""Seconds that a copy may take beyond the time that it was given: its last batch, and its answer."""


def call(function: Callable[[], Any], seconds: float) -> Any:
    """Return the result of ``function``, called in a copy of this process.

    Raises ``RuntimeError`` with the exception that ended the copy, or where it takes much longer than ``seconds``.
    """
    reading, writing = os.pipe()
    with _same_offsets():
        copy = os.fork()
        if not copy:
            os.close(reading)
            _answer(function, writing)
        os.close(writing)
        try:
            answer = _read(reading, seconds + SLACK_S)
        finally:
            os.close(reading)
            with contextlib.suppress(ProcessLookupError):
                os.kill(copy, signal.SIGKILL)  # has answered, or hangs
            os.waitpid(copy, 0)
    error, result = pickle.loads(answer) if answer else ("the process ended without an answer", None)
    if error:
        raise RuntimeError(error)
    return result


def _answer(function: Callable[[], Any], writing: int) -> None:
    """Write (error, result) and end the copy, without the cleanup that the original does."""
    try:
        answer = pickle.dumps((None, function()))
    except BaseException as error:
        answer = pickle.dumps((f"{type(error).__name__}: {error}", None))
    try:
        with os.fdopen(writing, "wb") as file:
            file.write(answer)
        sys.stderr.flush()
    finally:
        os._exit(0)


def _read(descriptor: int, seconds: float) -> bytes:
    """Read until the other end is closed."""
    parts: list[bytes] = []
    deadline = time.monotonic() + seconds
    while connection.wait([descriptor], max(deadline - time.monotonic(), 0)):
        part = os.read(descriptor, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return pickle.dumps((f"no answer within {seconds:.0f} s", None))


@contextlib.contextmanager
def _same_offsets() -> Iterator[None]:
    """Put the offsets of open files back, which the copy shares.

    Files that are only written keep theirs: other ranks may share them, too, and write their output meanwhile.
    """
    offsets = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.path.isfile(f"/proc/self/fd/{descriptor}") and _is_read(descriptor):
                offsets[descriptor] = os.lseek(descriptor, 0, os.SEEK_CUR)
    yield
    for descriptor, offset in offsets.items():
        with contextlib.suppress(OSError):
            os.lseek(descriptor, offset, os.SEEK_SET)


def _is_read(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
