"""Python objects that the first rank of a command sends to the others: those ranks that run read them from files.

The name of a run, a random seed or a folder is made by the first rank; without it, the others cannot go on.
"""

import os
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from memlab.predict.trace.run_command import VARIABLE, own_folder

WAIT_S = 60.0
"""Seconds after which a rank takes it that the first rank does not send."""

_sent: Counter[str] = Counter()  # by the ranks of a group


def note_rank(rank: str | None) -> None:
    """Note that this process is the first rank, if it is: only then the others wait for its objects."""
    if rank == "0":
        _process().write_text(str(os.getpid()))


def send(objects: Sequence[Any], ranks: Sequence[int]) -> None:
    """Leave the objects that the first rank sends to the group of ``ranks``."""
    if _process().exists():
        file = _next(ranks)
        file.with_suffix(".part").write_bytes(pickle.dumps(list(objects)))
        file.with_suffix(".part").rename(file)


def receive(ranks: Sequence[int]) -> list[Any] | None:
    """Return the next objects that the first rank sends to the group of ``ranks``; ``None``: it does not run, or ended
    without."""
    file, deadline = _next(ranks), time.monotonic() + WAIT_S
    with suppress(OSError, ValueError):
        while not file.exists():
            os.kill(int(_process().read_text()), 0)  # raises OSError where the process has ended
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        return pickle.loads(file.read_bytes())
    return None


def _process() -> Path:
    return own_folder() / "first_rank.pid" if VARIABLE in os.environ else Path(os.devnull, "none")


def _next(ranks: Sequence[int]) -> Path:
    group = "-".join(map(str, ranks))
    _sent[group] += 1
    return _process().with_name(f"objects_{abs(hash(group)):x}_{_sent[group]}.pickle")
