"""Readings of this process's memory, from one boundary of phases to the next, and the peaks of several readings."""

from dataclasses import dataclass
from typing import Any

import torch

from .counters import Counters
from .host import HostMemory

CUDA_ALLOCATOR = "cuda_caching_allocator"
HOST = "host"


@dataclass
class Peaks:
    """Bytes; ``None``: not counted here. Peaks are the highest of all readings, ``end_...`` belong to the last one.

    The driver's figure for the whole device is ``used_bytes``. ``end_requested_bytes``: of the allocated ones, without
    what the allocator adds to each block.
    """

    count: int = 0
    seconds: float = 0.0
    where: str | None = None  # in the user's code, at the highest peak
    step: int | None = None  # of the highest peak
    peak_allocated_bytes: int | None = None
    peak_active_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    end_allocated_bytes: int | None = None
    end_requested_bytes: int | None = None
    used_bytes: int | None = None
    host_peak_bytes: int | None = None
    host_rss_bytes: int | None = None

    @property
    def deciding_peak(self) -> int:
        """The peak by which phases are compared: allocated on a device, else resident on the host."""
        return (self.host_peak_bytes if self.peak_allocated_bytes is None else self.peak_allocated_bytes) or 0

    def fold(self, reading: "Reading") -> bool:
        """Add a reading. Returns whether the deciding peak rose. While counting is paused, it does not."""
        is_counted = reading.peak_allocated_bytes is not None
        rises = reading.deciding_peak > self.deciding_peak and (is_counted or self.peak_allocated_bytes is None)
        if is_counted:
            self.peak_allocated_bytes = max(self.peak_allocated_bytes or 0, reading.peak_allocated_bytes or 0)
            self.peak_active_bytes = max(self.peak_active_bytes or 0, reading.peak_active_bytes or 0)
            self.peak_reserved_bytes = max(self.peak_reserved_bytes or 0, reading.peak_reserved_bytes or 0)
            self.end_allocated_bytes = reading.end_allocated_bytes
            self.end_requested_bytes = reading.end_requested_bytes
        if reading.used_bytes is not None:
            self.used_bytes = max(self.used_bytes or 0, reading.used_bytes)
        self.host_peak_bytes = max(self.host_peak_bytes or 0, reading.host_peak_bytes or 0)
        self.host_rss_bytes = reading.host_rss_bytes
        return rises


@dataclass
class Reading(Peaks):
    """Peaks since the last reading; ``end_...`` and ``host_rss_bytes``: what is in use now. ``failures``: the
    allocator's retries and out-of-memory errors since the process began. The device's figures are ``None`` without a
    device."""

    failures: tuple[int, int] | None = None


class Memory:
    """The counters of the device that this process uses, and of the host.

    The device is the current one until :meth:`settle`. Without a CUDA context on it there is none: the driver's figure
    and events make a context, and each rank is on cuda:0 until it chooses its own GPU.
    """

    def __init__(self):
        self.host = HostMemory()
        self.counters = Counters(torch._C) if hasattr(torch._C, "_cuda_memoryStats") else None
        self._settled: int | None = None
        self._asked_at: tuple[int, int] | None = None  # device and reserved bytes when the driver was last asked
        self._used: int | None = None  # what the driver said then

    def install(self) -> None:
        """Let the script keep its own view of all figures that memlab resets."""
        self.host.install()
        if self.counters:
            self.counters.install()

    @property
    def device(self) -> int | None:
        """Index of the device, ``None`` without one."""
        if self._settled is not None:
            return self._settled
        if self.counters is None or not torch.cuda.is_initialized():
            return None
        current = torch.cuda.current_device()
        return current if torch._C._cuda_hasPrimaryContext(current) else None

    def settle(self) -> None:
        """Keep to the current device from now on."""
        self._settled = self.device

    @property
    def source(self) -> str:
        """What counts the memory, as ``memory_source`` of the rank's file."""
        return HOST if self.device is None else CUDA_ALLOCATOR

    def turn(self) -> Reading:
        """Return the figures since the last turn, and reset the peaks. No synchronisation, no allocation."""
        reading = self.host_reading()
        device, counters = self.device, self.counters
        if device is None or counters is None or not (stats := counters.read(device)):
            return reading
        reading.end_allocated_bytes = stats["allocated_bytes"]["all"]["current"]
        reading.end_requested_bytes = stats["requested_bytes"]["all"]["current"]
        peaks = counters.peaks(device, stats)
        reading.peak_allocated_bytes, reading.peak_active_bytes, reading.peak_reserved_bytes = peaks
        reading.failures = counters.totals(device, stats)
        reading.used_bytes = self._used_bytes(device, stats["reserved_bytes"]["all"]["current"])
        counters.reset_peaks(device, stats)
        return reading

    def host_reading(self) -> Reading:
        """Return the host's figures since the last turn."""
        now, peak = self.host.turn()
        return Reading(host_peak_bytes=peak, host_rss_bytes=now)

    def others(self) -> list[dict[str, Any]]:
        """Return peaks of allocated and reserved bytes of the process's other devices, as the script would read, and
        the bytes in use there, with the peak of reserved ones."""
        found: list[dict[str, Any]] = []
        if (own := self.device) is None:
            return found
        for index in {*range(torch.cuda.device_count())} - {own}:
            peak, reserved = torch.cuda.max_memory_allocated(index), torch.cuda.max_memory_reserved(index)
            if reserved:
                free, total = torch.cuda.mem_get_info(index)
                used = total - free - torch.cuda.memory_reserved(index) + reserved
                device = {"device": f"cuda:{index}", "peak_allocated_bytes": peak, "peak_reserved_bytes": reserved}
                found.append({**device, "device_used_bytes": used})
        return found

    def _used_bytes(self, device: int, reserved: int) -> int | None:
        """Ask the driver only if the allocator holds more or less than before: the question takes a while."""
        if self._asked_at != (device, reserved):
            free, total = torch.cuda.mem_get_info(device)
            self._asked_at, self._used = (device, reserved), total - free
        return self._used


def pinned_peak_bytes() -> int | None:
    """Return the peak of torch's pinned host memory since the process began, in bytes; ``None``: it does not count."""
    if not torch.cuda.is_initialized() or not hasattr(torch.cuda, "host_memory_stats"):
        return None
    return torch.cuda.host_memory_stats().get("allocated_bytes.peak")
