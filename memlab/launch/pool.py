"""Which GPUs are free: launches that run side by side get disjoint ones, also from memlab processes beside this one."""

import contextlib
import fcntl
import threading
import time
from collections.abc import Iterator

from memlab.launch.environment import cache_dir
from memlab.machine import Gpu


class GpuPool:
    """The GPUs of this machine. On a machine without any, one launch at a time."""

    def __init__(self, gpus: tuple[Gpu, ...]):
        self._all = gpus
        self._free = list(gpus)
        self._changed = threading.Condition()
        self._running = 0
        self._is_alone = False  # whoever runs now wants nothing beside it

    @contextlib.contextmanager
    def take(self, count: int, alone: bool, stop: threading.Event) -> Iterator[tuple[Gpu, ...] | None]:
        """``count`` GPUs for as long as the block runs; ``alone``: with nothing beside it. ``None``: told to stop."""
        with self._changed:
            while not stop.is_set() and not self._available(count, alone):
                self._changed.wait(0.5)
            if not (stopped := stop.is_set()):
                taken = tuple(self._free[:count])
                self._free = self._free[count:]
                self._running += 1
                self._is_alone = alone
        if stopped:
            yield None
            return
        try:
            with _machine_wide([gpu.id for gpu in taken], stop) as held:
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
def _machine_wide(ids: list[str], stop: threading.Event) -> Iterator[bool]:
    """Hold these GPUs against other memlab processes: two measurements on one GPU would measure each other.

    False: told to stop before all were to be had.
    """
    folder = cache_dir() / "gpus"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        for id in sorted(ids):
            lock = held.enter_context((folder / f"{id}.lock").open("w"))
            while not stop.is_set():
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.5)
        yield not stop.is_set()
