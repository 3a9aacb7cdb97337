"""Allocation of GPUs: launches side by side get disjoint GPUs, also across memlab processes on this machine."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from memlab.system.environment import cache_dir
from memlab.system.locks import hold, holder
from memlab.system.machine import Gpu

POLL_S = 0.5


class GpuPool:
    """The GPUs of this machine. On a machine without GPUs, one launch runs at a time."""

    def __init__(self, gpus: tuple[Gpu, ...]):
        self._all = gpus
        self._free = list(gpus)
        self._changed = threading.Condition()
        self._running = 0
        self._is_alone = False  # whether the running launch must have nothing beside it

    @contextlib.contextmanager
    def take(
        self,
        count: int,
        alone: bool,
        give_up: Callable[[], bool],
        on_wait: Callable[[str], None] = lambda text: None,
    ) -> Iterator[tuple[Gpu, ...] | None]:
        """Hold ``count`` GPUs while the block runs; with ``alone``, without any other launch beside it.

        Yields the GPUs, or ``None`` once ``give_up`` returns true. ``on_wait`` is called with a message when another
        memlab process on this machine holds a GPU or core.
        """
        with self._changed:
            while not (given_up := give_up()) and not self._available(count, alone):
                self._changed.wait(POLL_S)
            if not given_up:
                taken = tuple(self._free[:count])
                self._free = self._free[count:]
                self._running += 1
                self._is_alone = alone
        if given_up:
            yield None
            return
        try:
            with _machine_wide(taken, alone, give_up, on_wait) as held:
                yield taken if held else None
        finally:
            with self._changed:
                self._free = sorted({*self._free, *taken}, key=self._all.index)
                self._running -= 1
                self._is_alone = False
                self._changed.notify_all()

    def _available(self, count: int, alone: bool) -> bool:
        if alone or self._is_alone or not self._all:
            return self._running == 0
        return len(self._free) >= count


@contextlib.contextmanager
def _machine_wide(
    gpus: Sequence[Gpu], alone: bool, give_up: Callable[[], bool], on_wait: Callable[[str], None]
) -> Iterator[bool]:
    """Lock GPUs and cores against other memlab processes: two measurements on one GPU would change each other.

    Launches share the locks of their cores; a launch with ``alone`` locks its cores exclusively. Yields false once
    ``give_up`` returns true.
    """
    wanted = {f"gpu-{gpu.uuid or gpu.id}": False for gpu in gpus}
    wanted |= {f"core-{number}": not alone for number in os.sched_getaffinity(0)}
    folder = cache_dir() / "locks" / socket.gethostname()  # several machines may share the cache's file system
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        for name, shared in sorted(wanted.items()):  # the same order in all processes, to avoid a deadlock
            if not _wait_for(folder / f"{name}.lock", shared, held, give_up, on_wait):
                yield False
                return
        yield True


def _wait_for(path, shared: bool, held: contextlib.ExitStack, give_up, on_wait) -> bool:
    told = None
    while not give_up():
        with contextlib.ExitStack() as attempt:
            if attempt.enter_context(hold(path, shared)):
                held.enter_context(attempt.pop_all())
                return True
        if told != (told := holder(path)):
            on_wait(f"waiting for another memlab on this machine ({told}): side by side they would measure each other")
        time.sleep(POLL_S)
    return False
