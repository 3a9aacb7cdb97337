"""What takes memory outside torch's allocator when it first runs: noted in a trace, without its size. No torch."""

from typing import NamedTuple

from memlab.core.value_types import Count

STREAM = "stream of high priority"
COMMUNICATOR = "communicator"
COLLECTIVE = "first collective of a group"
HANDLE = "cuBLAS handle"
ATTENTION = "attention, forward"
ATTENTION_BACKWARD = "attention, backward"


class Appearance(NamedTuple):
    """``event``: number of events of the trace before it. ``what``: one of the names above. ``cause``: what it is for;
    of a communicator or collective, the group, and ``ranks``, the number of its ranks."""

    event: Count
    what: str
    cause: str = ""
    ranks: Count = 0
