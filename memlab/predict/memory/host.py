"""Host memory of a rank: the memory of its tensors on the host, and the part that page-locking adds."""

from collections import Counter
from dataclasses import dataclass

from memlab.predict.constants import HOST_PROCESS_BYTES, pinned_block
from memlab.predict.trace.events import HOST_ALLOC, HOST_FREE, Trace


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
        if event[0] == HOST_ALLOC:
            _, key, nbytes, is_pinned = event
            if is_pinned:
                nbytes = pinned_block(nbytes)
                if kept[nbytes]:
                    kept[nbytes] -= 1
                else:
                    pinned += nbytes
            else:
                pageable += nbytes
            alive[key] = (nbytes, bool(is_pinned))
            highest = max(highest, pageable + pinned)
        elif event[0] == HOST_FREE:
            nbytes, was_pinned = alive.pop(event[1])
            if was_pinned:
                kept[nbytes] += 1
            else:
                pageable -= nbytes
    return HostPeak(process=HOST_PROCESS_BYTES + highest, pinned=pinned)
