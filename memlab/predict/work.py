"""What one training step asks of the machine, in order: plain data that a shadow run writes and no torch reads."""

KERNEL, COPY, COLLECTIVE, STREAM_WAITS_COLLECTIVE, RECORD, STREAM_WAITS, HOST_WAITS, HOST_WORK, PHASE = range(9)
"""The kinds of items. Every item is ``(kind, operators, modules, ...)``: how many operators the host had to dispatch
and how many modules' ``forward`` it had to enter since the item before, then:

KERNEL                  stream, 1 if in half precision, FLOPs, bytes of each tensor that is read or written
COPY                    stream, 1 if the host waits for it, by way of what (PINNED ...), bytes: from or to the host
COLLECTIVE              stream, index in ``COLLECTIVES``, ranks, bytes     (of the whole: what all-gather leaves)
STREAM_WAITS_COLLECTIVE stream, number of the collective in this step
RECORD                  stream, number of the event in this step
STREAM_WAITS            stream, number of the event
HOST_WAITS              number of the event, or ``EVERYTHING``
HOST_WORK               bytes of each host tensor that is read or written
PHASE                   index in ``Trace.phases``
"""

Item = tuple[int, ...]

FIRST_SIZE = {KERNEL: 5, COPY: 6, COLLECTIVE: 6, HOST_WORK: 3}
"""Where in an item the figures begin that depend on batch and tokens. All others are the same for every size."""

NUMBER = {
    STREAM_WAITS_COLLECTIVE: (4, COLLECTIVE),
    RECORD: (4, RECORD),
    STREAM_WAITS: (4, RECORD),
    HOST_WAITS: (3, RECORD),
}
"""Where in an item the number of a collective or an event stands, and the kind of item that is counted by it."""

EVERYTHING = -1

PINNED, PAGEABLE, CONVERTED_TO_HOST, CONVERTED_FROM_HOST = range(4)
"""What host memory a copy goes by: pinned, any other, or some that is made for a conversion on the host. Page by page,
that takes the longest: to the host one thread of the driver does it, from the host all threads that convert."""

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")

HOST_MINIMUM_BYTES = 1 << 20
"""Operators on less host memory than this are told by their number alone."""


def link_bytes(collective: int, ranks: int, nbytes: int) -> float:
    """Bytes that each GPU sends in a ring, of a collective over ``nbytes``.

    All-gather and reduce-scatter pass every other rank's share on once, all-reduce is one after the other, as is the
    account of NCCL's own benchmark (nccl-tests, doc/PERFORMANCE.md: "bus bandwidth").
    """
    others = (ranks - 1) / ranks
    name = COLLECTIVES[collective]
    if name == "all_reduce":
        return 2 * others * nbytes
    return nbytes if name in ("broadcast", "reduce") and ranks > 1 else others * nbytes
