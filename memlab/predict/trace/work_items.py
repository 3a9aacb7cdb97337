"""Work of one training step, in order: plain data that a shadow run writes. No torch needed."""

KERNEL, COPY, COLLECTIVE, STREAM_WAITS_COLLECTIVE, RECORD, STREAM_WAITS, HOST_WAITS, HOST_WORK, PHASE = range(9)
"""The kinds of items. Every item is ``(kind, operators, modules, ...)``: the number of operators that the host
dispatched and of modules whose ``forward`` it entered since the item before. The fields after them:

KERNEL                  stream, 1 if in half precision, FLOPs, bytes of each tensor that is read or written
COPY                    stream, 1 if the host waits for it, host memory (PINNED ...), bytes   (from or to the host)
COLLECTIVE              stream, index in ``COLLECTIVES``, ranks, bytes     (of the whole tensor: all-gather's output)
STREAM_WAITS_COLLECTIVE stream, number of the collective in this step
RECORD                  stream, number of the event in this step
STREAM_WAITS            stream, number of the event
HOST_WAITS              number of the event, or ``EVERYTHING``
HOST_WORK               bytes of each host tensor that is read or written
PHASE                   index in ``Trace.phases``
"""

Item = tuple[int, ...]

FIRST_SIZE = {KERNEL: 5, COPY: 6, COLLECTIVE: 6, HOST_WORK: 3}
"""Kind -> index in the item of the first field that depends on batch and tokens. The fields before it do not."""

NUMBER = {
    STREAM_WAITS_COLLECTIVE: (4, COLLECTIVE),
    RECORD: (4, RECORD),
    STREAM_WAITS: (4, RECORD),
    HOST_WAITS: (3, RECORD),
}
"""Kind -> index in the item of the number of an event or collective, and the kind of item that is numbered."""

EVERYTHING = -1

PINNED, PAGEABLE, CONVERTED_TO_HOST, CONVERTED_FROM_HOST = range(4)
"""Host memory that a copy uses: pinned, pageable, or a temporary buffer for a conversion on the host. The buffer's new
pages take the longest: one thread of the driver touches them in a copy to the host, all converting threads in a copy
from the host."""

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")

HOST_MINIMUM_BYTES = 1 << 20
"""Operators on less host memory are only counted, without a HOST_WORK item."""


def link_bytes(collective: int, ranks: int, nbytes: int) -> float:
    """Return the bytes that each GPU sends in a ring for a collective over ``nbytes``.

    All-gather and reduce-scatter pass every other rank's share on once; all-reduce is a reduce-scatter and an
    all-gather. NCCL's own benchmark counts in the same way (nccl-tests, doc/PERFORMANCE.md: "bus bandwidth").
    """
    others = (ranks - 1) / ranks
    name = COLLECTIVES[collective]
    if name == "all_reduce":
        return 2 * others * nbytes
    return nbytes if name in ("broadcast", "reduce") and ranks > 1 else others * nbytes
