"""Peaks of a phase or of a step, folded together from readings."""

from dataclasses import dataclass

from .memory import Reading


@dataclass
class Peaks:
    """Bytes; ``None``: not counted here. Peaks are the highest of all readings, ``end_...`` belong to the last one."""

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
        return (self.host_peak_bytes if self.peak_allocated_bytes is None else self.peak_allocated_bytes) or 0

    def fold(self, reading: Reading) -> bool:
        """Add a reading. Returns whether the deciding peak rose. While counting is paused, it does not."""
        is_counted = reading.peak_allocated is not None
        rises = reading.deciding_peak > self.deciding_peak and (is_counted or self.peak_allocated_bytes is None)
        if is_counted:
            self.peak_allocated_bytes = max(self.peak_allocated_bytes or 0, reading.peak_allocated)
            self.peak_active_bytes = max(self.peak_active_bytes or 0, reading.peak_active)
            self.peak_reserved_bytes = max(self.peak_reserved_bytes or 0, reading.peak_reserved)
            self.end_allocated_bytes, self.end_requested_bytes = reading.allocated, reading.requested
        if reading.used is not None:
            self.used_bytes = max(self.used_bytes or 0, reading.used)
        self.host_peak_bytes = max(self.host_peak_bytes or 0, reading.host_peak)
        self.host_rss_bytes = reading.host_rss
        return rises
