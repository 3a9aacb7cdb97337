"""The meter on a CPU, where torch counts nothing: live tensor storages as allocated, the resident set as reserved."""

import gc
import time
import weakref
from collections import deque

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memlab.core.record import LIVE_TENSORS
from memlab.meters.memory import Memory, Reading

_GLOO_LETS_GO_S = 0.005
"""Seconds in which gloo's threads drop the tensors of a finished collective. Without this pause, they still held 4 to
30 % of 400 broadcast tensors (2 ranks, 2 cores, torch 2.13)."""


class LiveTensors(Memory):
    """Counts between :meth:`resume` and :meth:`pause`, which slows every operator: a dispatch mode sees every tensor
    that an operator returns. These are all that torch's allocator would hold, but for what a kernel uses and frees
    internally."""

    source = LIVE_TENSORS
    device = None

    def __init__(self):
        super().__init__()
        self.live = 0
        self.freed: deque[int] = deque()  # bytes to take off ``live``; other threads append, too
        self.peak = 0
        self.seen: set[int] = set()
        self.mode = _StorageMode(self)
        self.counting = self.communicated = False

    def turn(self) -> Reading:
        reading = self.host_reading()
        if self.counting:
            reading.end_allocated_bytes, reading.peak_reserved_bytes = self.settled(), reading.host_peak_bytes
            reading.peak_allocated_bytes = reading.peak_active_bytes = self.peak
            self.peak = reading.end_allocated_bytes
        return reading

    def resume(self) -> None:
        """Count from now on, also the tensors that are there."""
        if self.counting:
            return
        for tensor in gc.get_objects():
            if issubclass(type(tensor), torch.Tensor):
                self.track(tensor)
        self.mode.__enter__()
        self.counting = True

    def pause(self) -> None:
        if self.counting:
            self.mode.__exit__(None, None, None)
            self.counting = False

    def track(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.seen:
            return
        size = storage.nbytes()
        self.seen.add(key)
        if self.settled() + size > self.peak and self.communicated:
            time.sleep(_GLOO_LETS_GO_S)  # else the peak depends on when a thread drops a tensor
            self.communicated = False
        self.live += size
        self.peak = max(self.peak, self.settled())
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.freed.append(size)

    def settled(self) -> int:
        """Return the bytes of the tensors that are alive now."""
        while self.freed:
            self.live -= self.freed.popleft()
        return self.live


class _StorageMode(TorchDispatchMode):
    def __init__(self, meter: LiveTensors):
        super().__init__()
        self.meter = meter

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.meter.track(value)
        self.meter.communicated |= function.namespace == "c10d"
        return result
