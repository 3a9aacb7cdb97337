"""Memory meter of a simulated rank: it counts requested bytes from the events of the trace.

When the rank has ended, memlab replays its trace through the model of torch's allocator. The figures of the prediction
come from this replay. While the rank runs, the meters only need to know how much memory is held, and where it peaks.
"""

from collections import defaultdict

from memlab.meters.memory import Memory, Reading
from memlab.simulator.rank.memory_events import MemoryEvents
from memlab.simulator.trace.events import STREAMS, Alloc, Event, Free


class _Held:
    """Bytes that are held on a GPU: now, the peak since the last reading, and the peak of all time, which a caching
    allocator keeps reserved."""

    now = peak = highest = 0


class CountedMemory(Memory):
    """Counts ``events``, a trace's. ``recorded``: what writes them."""

    def __init__(self, events: list[Event], recorded: MemoryEvents):
        super().__init__()
        self._events, self._recorded, self._counted = events, recorded, 0
        self._on_gpus: dict[int | None, _Held] = defaultdict(_Held)  # by the number of the GPU in this process
        self._blocks: dict[int, tuple[_Held, int]] = {}

    def install(self) -> None:
        """Leave the script's view of the counters alone: memlab resets none."""
        self.host.install()

    def turn(self) -> Reading:
        reading = self.host_reading()
        if self.device is not None:
            self._count()
            held = self._on_gpus[self._recorded.number_of(self.device)]
            reading.end_allocated_bytes = reading.end_requested_bytes = held.now
            reading.peak_allocated_bytes = reading.peak_active_bytes = held.peak
            reading.peak_reserved_bytes = held.highest = max(held.highest, held.peak)
            held.peak = held.now
        return reading

    def _count(self) -> None:
        for event in self._events[self._counted :]:
            if type(event) is Alloc:
                held = self._on_gpus[event.stream // STREAMS]
                self._blocks[event.key] = held, event.nbytes
                held.now += event.nbytes
                held.peak = max(held.peak, held.now)
            elif type(event) is Free:
                held, nbytes = self._blocks.pop(event.key)
                held.now -= nbytes
        self._counted = len(self._events)
