"""Messages between those ranks of a command that run: files in the folder that they share with memlab."""

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from memlab.predict.trace.run_command import VARIABLE, own_folder

POLL_S = 0.01

_messages: Counter[tuple[int, str]] = Counter()
"""Messages so far: sender and address -> number."""


def note_rank(rank: str | None) -> None:
    """Note that the process of this rank runs: others wait for its messages."""
    if rank is not None:
        _process(int(rank)).write_text(str(os.getpid()))


def send(source: int, address: str, content: bytes) -> None:
    """Leave the next message of the rank ``source`` (this one) to an address."""
    if VARIABLE in os.environ:
        file = _next(source, address)
        written = file.with_suffix(".part")
        written.write_bytes(content)
        written.replace(file)


def receive(source: int, address: str) -> bytes | None:
    """Wait for the next message of a rank to an address. ``None``: the rank does not run, or it ended without one."""
    if VARIABLE not in os.environ:
        return None
    file = _next(source, address)
    while not file.exists():
        if not _runs(source) and not file.exists():
            return None
        time.sleep(POLL_S)
    return file.read_bytes()


def _next(source: int, address: str) -> Path:
    _messages[source, address] += 1
    return own_folder() / f"from{source}to{address}.{_messages[source, address]}"


def _process(rank: int) -> Path:
    return own_folder() / f"rank{rank}.pid"


def _runs(rank: int) -> bool:
    if (own_folder() / f"rank{rank}.trace.json").exists():
        return False
    with suppress(OSError, ValueError):
        os.kill(int(_process(rank).read_text()), 0)
        return True
    return False
