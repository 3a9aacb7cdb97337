"""Room on this host for commands that are predicted at once."""

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterator

from memlab.launch.doctor.facts import free_host_memory

PROCESSES = 2
"""Processes of a prediction: rank 0, and one for all other ranks."""

MARGIN = 1.25
"""Memory that a further prediction must find, as a multiple of what one took so far: a larger batch takes more."""

POLL_S = 0.2


class ShadowSlots:
    """Lets several predictions run at once: as many as the cores carry, and the host's memory.

    The memory of a prediction is not known before one has ended, so the first runs alone.
    """

    def __init__(self) -> None:
        self.most = max(1, len(os.sched_getaffinity(0)) // PROCESSES)
        self._free_at_rest = free_host_memory()
        self._running = self._ended = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, give_up: Callable[[], bool]) -> Iterator[bool]:
        """Hold a slot while the block runs. Yields false, without a slot, once ``give_up`` returns true."""
        with self._changed:
            while not (given_up := give_up()) and self._running >= self._room():
                self._changed.wait(POLL_S)
            self._running += not given_up
        try:
            yield not given_up
        finally:
            with self._changed:
                self._running -= not given_up
                self._ended += not given_up
                self._changed.notify_all()

    def _room(self) -> int:
        if not self._ended:
            return 1
        return max(1, min(self.most, int(self._free_at_rest / (PROCESSES * MARGIN * largest_child_bytes()))))


def largest_child_bytes() -> int:
    """Return the largest resident set of a process that this process has waited for."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # Linux: KiB
