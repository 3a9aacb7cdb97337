"""Host memory of a rank: the memory of its tensors on the host, and the part that page-locking adds."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from memlab.simulator.constants import HOST_PROCESS_BYTES, pinned_block
from memlab.simulator.trace.events import BeginPhase, Event, HostAlloc, HostFree, of_kinds
from memlab.simulator.trace.trace_format import Trace

_SEEN = HostAlloc, HostFree


@dataclass
class HostPeak:
    """Host memory in bytes. ``process``: the resident set, page-locked memory included; ``pinned``: the page-locked
    memory."""

    process: int
    pinned: int


def host_peak(trace: Trace) -> HostPeak:
    """Return the highest host memory of the whole run.

    Page-locked blocks are powers of two and are kept for reuse when they are freed. Other memory goes back to the
    system.
    """
    memory = _HostMemory()
    for _, event in of_kinds(trace.events, *_SEEN):
        memory.see(event)
    return HostPeak(process=HOST_PROCESS_BYTES + memory.highest, pinned=memory.pinned)


def host_peaks_of_pieces(trace: Trace) -> list[int]:
    """Return the highest resident set between each BeginPhase event and the next, in bytes."""
    memory, peaks, began = _HostMemory(), [], False
    for _, event in of_kinds(trace.events, BeginPhase, *_SEEN):
        if isinstance(event, BeginPhase):
            if began:
                peaks.append(memory.highest)
            began, memory.highest = True, memory.resident
        memory.see(event)
    return [HOST_PROCESS_BYTES + peak for peak in (*peaks, memory.highest)]


def host_changes(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """Yield the index of each event that changes the memory of the tensors on the host, and the pageable and the
    page-locked bytes after it."""
    memory, before = _HostMemory(), (0, 0)
    for index, event in of_kinds(trace.events, *_SEEN):
        memory.see(event)
        if (after := (memory.pageable, memory.pinned)) != before:
            before = after
            yield index, *after


class _HostMemory:
    """Bytes of the tensors on the host, event by event."""

    def __init__(self) -> None:
        self.pageable = self.pinned = self.highest = 0
        self._alive: dict[int, tuple[int, bool]] = {}
        self._kept: Counter[int] = Counter()

    @property
    def resident(self) -> int:
        return self.pageable + self.pinned

    def see(self, event: Event) -> None:
        if isinstance(event, HostAlloc):
            self._allocate(event)
        elif isinstance(event, HostFree):
            nbytes, was_pinned = self._alive.pop(event.key)
            if was_pinned:
                self._kept[nbytes] += 1
            else:
                self.pageable -= nbytes

    def _allocate(self, event: HostAlloc) -> None:
        nbytes = event.nbytes
        if event.pinned:
            nbytes = pinned_block(nbytes)
            if self._kept[nbytes]:
                self._kept[nbytes] -= 1
            else:
                self.pinned += nbytes
        else:
            self.pageable += nbytes
        self._alive[event.key] = (nbytes, event.pinned)
        self.highest = max(self.highest, self.resident)
