"""Torch's memory counters of GPUs, which memlab resets at each phase while the script keeps its own view.

torch.cuda and torch.accelerator read and reset the counters through functions of ``torch._C``. :class:`Counters` stands
in for these functions. What the script reads is the maximum of torch's peak and of the peaks that memlab has reset
since the script's own last reset.
"""

from collections.abc import Callable
from functools import partial
from typing import Any


class Counters:
    """The counters of all devices. ``functions``: ``torch._C``, or a stand-in with the same names."""

    def __init__(self, functions: Any):
        self.functions = functions
        self.read: Callable[[int], dict[str, Any]] = functions._cuda_memoryStats
        self._reset: Callable[[int], None] = functions._cuda_resetPeakMemoryStats
        self._carried: dict[int, dict[str, Any]] = {}  # device -> peaks that memlab has reset and the script has not
        self._held: dict[int, tuple[int, ...]] = {}  # device -> peaks that the script has reset and memlab has not
        self._totals: dict[int, tuple[int, int]] = {}  # device -> totals that the script has reset

    def peaks(self, device: int, stats: dict[str, Any]) -> tuple[int, ...]:
        """Return the peaks of allocated, active and reserved bytes since :meth:`reset_peaks`. ``stats``: what ``read``
        has just returned."""
        peaks = [stats[name]["all"]["peak"] for name in ("allocated_bytes", "active_bytes", "reserved_bytes")]
        return tuple(map(max, peaks, self._held.get(device, peaks)))

    def reset_peaks(self, device: int, stats: dict[str, Any]) -> None:
        """Reset the peaks, which the script still sees. ``stats``: what ``read`` has just returned."""
        self._held.pop(device, None)
        _raise(self._carried.setdefault(device, {}), stats)
        self._reset(device)

    def totals(self, device: int, stats: dict[str, Any]) -> tuple[int, int]:
        """Return the allocator's retries and out-of-memory errors since the process began."""
        retries, ooms = self._totals.get(device, (0, 0))
        return retries + stats.get("num_alloc_retries", 0), ooms + stats.get("num_ooms", 0)

    def install(self) -> None:
        """Give the script functions with its own view."""
        for names, stand_in in (
            (("_cuda_memoryStats", "_accelerator_getDeviceStats"), self._script_reads),
            (("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"), self._script_resets_peaks),
            (("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"), self._script_resets_totals),
        ):
            for name in names:
                if hasattr(self.functions, name):
                    setattr(self.functions, name, partial(stand_in, getattr(self.functions, name)))

    def _script_reads(self, read: Callable, device: int) -> dict[str, Any]:
        stats = read(device)
        _raise(stats, self._carried.get(device, {}))
        return stats

    def _script_resets_peaks(self, reset: Callable, device: int) -> None:
        self._held[device] = self.peaks(device, self.read(device))
        self._carried.pop(device, None)
        reset(device)

    def _script_resets_totals(self, reset: Callable, device: int) -> None:
        totals = self.totals(device, self.read(device))
        reset(device)
        self._totals[device] = totals


def _raise(peaks: dict[str, Any], others: dict[str, Any]) -> None:
    """Raise each ``peak`` in ``peaks`` to that in ``others``, at any depth. A group that is missing is added."""
    for name, value in others.items():
        if isinstance(value, dict):
            _raise(peaks.setdefault(name, {}), value)
        elif name == "peak":
            peaks[name] = max(peaks.get(name, 0), value)
