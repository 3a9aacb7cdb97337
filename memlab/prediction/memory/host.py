"""Host memory of a rank: the memory of its tensors on the host, and the part that page-locking adds."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from memlab.simulator.constants import HOST_PROCESS_BYTES, pinned_block
from memlab.simulator.trace.events import BeginPhase, Event, HostAlloc, HostFree, of_kinds
from memlab.simulator.trace.trace_format import Trace


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
    highest = pinned = 0
    for _, _, pageable, pinned in _after_each(trace):
        highest = max(highest, pageable + pinned)
    return HostPeak(process=HOST_PROCESS_BYTES + highest, pinned=pinned)


def host_peaks_of_pieces(trace: Trace) -> list[int]:
    """Return the highest resident set between each BeginPhase event and the next, in bytes."""
    peaks = [0]
    for _, event, pageable, pinned in _after_each(trace, BeginPhase):
        if isinstance(event, BeginPhase):
            peaks.append(0)
        peaks[-1] = max(peaks[-1], pageable + pinned)
    return [HOST_PROCESS_BYTES + peak for peak in peaks[1:] or peaks]


def host_changes(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """Yield the index of each event that changes the memory of the tensors on the host, and the pageable and the
    page-locked bytes after it."""
    before = 0, 0
    for index, _, pageable, pinned in _after_each(trace):
        if (pageable, pinned) != before:
            before = pageable, pinned
            yield index, pageable, pinned


def _after_each(trace: Trace, *others: type[Event]) -> Iterator[tuple[int, Event, int, int]]:
    """Yield each event of host memory or of the kinds ``others``, with its index, and the pageable and the page-locked
    bytes of the tensors on the host after it."""
    pageable = pinned = 0
    alive: dict[int, tuple[int, bool]] = {}
    kept: Counter[int] = Counter()  # free page-locked blocks of each size
    for index, event in of_kinds(trace.events, HostAlloc, HostFree, *others):
        if isinstance(event, HostAlloc):
            nbytes = pinned_block(event.nbytes) if event.pinned else event.nbytes
            alive[event.key] = (nbytes, event.pinned)
            if not event.pinned:
                pageable += nbytes
            elif kept[nbytes]:
                kept[nbytes] -= 1
            else:
                pinned += nbytes
        elif isinstance(event, HostFree):
            nbytes, was_pinned = alive.pop(event.key)
            if was_pinned:
                kept[nbytes] += 1
            else:
                pageable -= nbytes
        yield index, event, pageable, pinned
