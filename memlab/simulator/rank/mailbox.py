"""Messages between those ranks of a command that run: files in the folder that they share with memlab."""

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from memlab.simulator.rank.launchers import ALL_RANKS
from memlab.simulator.simulation import VARIABLE, own_folder

POLL_S = 0.01

START_S = 10.0
"""Seconds in which a rank may still start when another one waits for it."""

_messages: Counter[tuple[int, str]] = Counter()
"""Messages so far: sender and address -> number."""


def note_rank(rank: str | None) -> None:
    """Note that the process of this rank runs: others wait for its messages."""
    if rank is not None and VARIABLE in os.environ:
        _write(_process(int(rank)), str(os.getpid()).encode())


def leave(rank: int) -> None:
    """Note that this rank sends no more messages: it will wait for the ranks that it has started."""
    if VARIABLE in os.environ:
        _process(rank).unlink(missing_ok=True)


def send(source: int, address: str, content: bytes) -> None:
    """Write the next message of this rank, ``source``, to an address."""
    if VARIABLE in os.environ:
        _write(_next(source, address), content)


def receive(source: int, address: str) -> bytes | None:
    """Wait for the next message of a rank to an address. ``None``: the rank does not run, or it ended without one."""
    if VARIABLE not in os.environ:
        return None
    file, deadline = _next(source, address), time.monotonic() + START_S
    while not file.exists():
        may_start = _is_started(source) and not _process(source).exists() and time.monotonic() < deadline
        if not may_start and not _runs(source) and not file.exists():
            return None
        time.sleep(POLL_S)
    return file.read_bytes()


def _write(file: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all."""
    written = file.with_suffix(".part")
    written.write_bytes(content)
    written.replace(file)


def _next(source: int, address: str) -> Path:
    _messages[source, address] += 1
    return own_folder() / f"from{source}to{address}.{_messages[source, address]}"


def _is_started(rank: int) -> bool:
    """Whether a launcher starts this rank, and it is not left out."""
    return ALL_RANKS in os.environ or rank in (0, int(os.environ.get("WORLD_SIZE", 1)) - 1)


def _process(rank: int) -> Path:
    return own_folder() / f"rank{rank}.pid"


def _runs(rank: int) -> bool:
    with suppress(OSError, ValueError):
        state = Path(f"/proc/{int(_process(rank).read_text())}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"  # ended, and no parent has asked for its exit code
    return False
