"""File locks between memlab processes. The file names the holder; the kernel frees the lock when the process ends."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from memlab.files.regular_file import open_itself, read_end


@contextlib.contextmanager
def hold(path: Path, shared: bool = False) -> Iterator[bool]:
    """Hold the lock of this file while the block runs. Yields False, without the lock, if another process holds it.

    ``shared``: other processes with a shared lock can hold it at the same time.
    """
    with open(path, "a", opener=open_itself) as file:  # "w" would erase the name of the holder
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        _note(file.fileno(), f"pid {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}")
        try:
            yield True
        finally:
            _note(file.fileno(), "")  # the folder may be published: leave no host name in it


def holder(path: Path) -> str:
    """Describe the process that holds the lock of this file: ``pid 4242 on node-1, since 2026-11-21 05:40:11``."""
    return read_end(path, 1000) or "another process"


def _note(file: int, text: str) -> None:
    with contextlib.suppress(OSError):  # on a full disk the lock still works
        os.ftruncate(file, 0)
        os.write(file, text.encode())
