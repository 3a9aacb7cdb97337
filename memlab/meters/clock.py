"""Times on the device's clock, without waiting for the device."""

import time
from dataclasses import dataclass

import torch


@dataclass
class Mark:
    """A moment: on the host's clock, and as an event in the device's stream if there is a device."""

    host: float
    event: "torch.cuda.Event | None" = None

    @property
    def is_past(self) -> bool:
        """Whether the device has reached the event."""
        return self.event is None or self.event.query()


def mark(on_device: bool) -> Mark:
    """Mark this moment. A stream that is being captured into a graph takes no events."""
    if not on_device or torch.cuda.is_current_stream_capturing():
        return Mark(time.perf_counter())
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return Mark(time.perf_counter(), event)


def seconds(begin: Mark, end: Mark) -> float:
    """Return the time between two past marks, on the device's clock if both have events."""
    if begin.event is None or end.event is None:
        return end.host - begin.host
    return begin.event.elapsed_time(end.event) / 1000
