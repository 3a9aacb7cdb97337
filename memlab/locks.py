"""Locks between memlab processes, with who holds them written inside. The kernel ends them with their process."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def hold(path: Path, shared: bool = False) -> Iterator[bool]:
    """Hold the lock of this file while the block runs; ``shared``: with others that share it. False: others hold it."""
    with path.open("a") as file:  # "w" would wipe out who holds it
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        _note(file.fileno(), f"pid {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}")
        try:
            yield True
        finally:
            _note(file.fileno(), "")  # no name of a machine stays in a folder that may be published


def holder(path: Path) -> str:
    """Who holds the lock of this file, for a person: ``pid 4242 on node-1, since 2026-11-21 05:40:11``."""
    try:
        return path.read_text() or "another process"
    except OSError:
        return "another process"


def _note(file: int, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(file, 0)
        os.write(file, text.encode())
