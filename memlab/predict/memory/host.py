"""Host memory of a rank: the memory of its tensors on the host, and the part that page-locking adds."""

from collections import Counter
from dataclasses import dataclass

from memlab.predict.constants import HOST_PROCESS_BYTES, pinned_block
from memlab.predict.trace.events import HostAlloc, HostFree
from memlab.predict.trace.trace_format import Trace


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
    pageable = pinned = highest = 0
    alive: dict[int, tuple[int, bool]] = {}
    kept: Counter[int] = Counter()
    for event in trace.events:
        if isinstance(event, HostAlloc):
            nbytes = event.nbytes
            if event.pinned:
                nbytes = pinned_block(nbytes)
                if kept[nbytes]:
                    kept[nbytes] -= 1
                else:
                    pinned += nbytes
            else:
                pageable += nbytes
            alive[event.key] = (nbytes, event.pinned)
            highest = max(highest, pageable + pinned)
        elif isinstance(event, HostFree):
            nbytes, was_pinned = alive.pop(event.key)
            if was_pinned:
                kept[nbytes] += 1
            else:
                pageable -= nbytes
    return HostPeak(process=HOST_PROCESS_BYTES + highest, pinned=pinned)
