"""One lock for all tests that start launches of DeepSpeed, also those of other test runs with this environment.

A signal to DeepSpeed's pdsh runner makes it run ``pkill -f "PYTHON -u -m deepspeed.launcher.launch"`` on every host
(deepspeed/launcher/multinode_runner.py): that ends every launch of this Python on the machine. Tests of two hosts
therefore hold the lock alone; the other launches share it.
"""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILE = Path(sys.prefix) / "launches.lock"


@contextmanager
def lock(item: pytest.Item) -> Iterator[None]:
    """Wait until this test may run. Its fixtures are part of it."""
    kind = _kind_of_lock(item)
    if kind is None:
        yield
        return
    with FILE.open("w") as file:
        fcntl.flock(file, kind)
        yield


def turn(item: pytest.Item) -> int:
    """Key to sort tests by: those of two hosts come first, then shadow runs, which go on while others wait."""
    if _is_of_two_hosts(item):
        return 0
    return 1 if item.get_closest_marker("shadow") else 2


def _kind_of_lock(item: pytest.Item) -> int | None:
    if _is_of_two_hosts(item):
        return fcntl.LOCK_EX
    launches = item.get_closest_marker("cpu") or item.get_closest_marker("cluster")
    return fcntl.LOCK_SH if launches else None


def _is_of_two_hosts(item: pytest.Item) -> bool:
    return "hosts_by" in getattr(item, "fixturenames", ())
