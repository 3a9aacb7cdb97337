"""A stand-in for torch's allocator and its counters, for machines without a GPU."""

import copy
from types import SimpleNamespace


class Allocator:
    """Stands in for torch._C: counts the allocated bytes of one device as torch's allocator does."""

    def __init__(self):
        self.allocated, self.peak, self.retries = 0, 0, 0
        self.has_context = True

    def change(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def functions(self) -> SimpleNamespace:
        return SimpleNamespace(
            _cuda_memoryStats=lambda device: copy.deepcopy(
                {
                    "num_alloc_retries": self.retries,
                    "num_ooms": 0,
                    "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
                    "requested_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
                    "active_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
                    "reserved_bytes": {"all": {"current": 2 * self.allocated, "peak": 2 * self.peak}},
                    "oversize_segments": {"current": self.allocated, "peak": self.peak},
                }
            ),
            _cuda_resetPeakMemoryStats=lambda device: setattr(self, "peak", self.allocated),
            _cuda_resetAccumulatedMemoryStats=lambda device: setattr(self, "retries", 0),
        )
