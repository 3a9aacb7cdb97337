"""Events of a shadow run: what happens to memory, in order. Plain data, no torch.

Two events of different kinds can be equal as tuples, so compare their types as well.
"""

from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Annotated, Any, NamedTuple

from memlab.core.schema import PlainOf
from memlab.core.value_types import Count
from memlab.simulator.trace.columns import Columns, tuple_of
from memlab.simulator.trace.reduction_scratch import Scratch, scratch_of

STREAMS = 1 << 10
"""Numbers of streams that a GPU can have. In a process with several GPUs, the streams of its n-th further GPU have this
number n times added: a stream belongs to one GPU."""


class Alloc(NamedTuple):
    """Request for ``nbytes`` of device memory on a stream. A request for 0 bytes gets no block."""

    key: int
    nbytes: Count
    stream: Count
    site: Count  # index in ``Trace.sites``
    reduction: Annotated[Scratch | None, PlainOf(list[Count] | None)] = None  # for a buffer: the sum that needs it

    def at(self, site: int) -> "Alloc":
        """Return the request at another site, in a fraction of the time of ``_replace``."""
        key, nbytes, stream, _, reduction = self
        return tuple_of(Alloc, (key, nbytes, stream, site, reduction))


class Workspace(NamedTuple):
    """The most memory that a library takes for one call. It gives the memory back at once, and can do without it.

    ``is_taken``: whether a replay requests it.
    """

    nbytes: Count
    stream: Count
    is_taken: bool = False


class Free(NamedTuple):
    """Free of a block of device memory. ``release_delay``: number of further requests until the block can be reused;
    only for blocks that side streams used (prediction/memory/release_delay.py)."""

    key: int
    release_delay: Count | None = None


class RecordStream(NamedTuple):
    """``Tensor.record_stream``: a side stream uses the block."""

    key: int
    stream: Count


class Synchronize(NamedTuple):
    """Wait of the host for all work of the first ``requests`` requests for device memory.

    ``item()`` and copies to the host wait for one stream alone, and give no such event. The clocks count these waits
    (``HostWaits``, ``Copy`` in work_items.py); the bound of the longest release delay leaves them out, so it is on the
    safe side.
    """

    requests: Count


class EmptyCache(NamedTuple):
    """``torch.cuda.empty_cache``."""


class BeginPhase(NamedTuple):
    phase: Count  # index in ``Trace.phases``


class HostAlloc(NamedTuple):
    """Request for ``nbytes`` of host memory."""

    key: int
    nbytes: Count
    pinned: bool


class HostFree(NamedTuple):
    key: int


class BeginPoint(NamedTuple):
    """Beginning of a point's first step, where the peaks are reset."""


Event = (
    Alloc | Free | RecordStream | Synchronize | EmptyCache | BeginPhase | HostAlloc | HostFree | BeginPoint | Workspace
)

EVENT_COLUMNS = Columns(Event, {"reduction": lambda numbers: numbers and scratch_of(numbers)})
"""Plain form of events."""

MAKE, FREE = (Alloc, HostAlloc), (Free, HostFree)
OF_A_BLOCK = (*MAKE, *FREE, RecordStream)
"""The kinds that make a block, that free one, and all that name a block by its key."""


def made(events: Iterable[Any]) -> list[int]:
    """List the keys of the blocks that the events make."""
    return [event.key for event in events if type(event) in MAKE]


def of_kinds(events: Iterable[Any], *kinds: type[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the events (or items of work) of some kinds, each with its index. All others are passed over quickly."""
    return compress(enumerate(events), map(frozenset(kinds).__contains__, map(type, events)))


class GpuOfEvents:
    """Returns, event by event from the first one on, the number of the GPU that an event is on; ``None``: it is on no
    GPU, or on all."""

    def __init__(self) -> None:
        self._of_blocks: dict[int, int] = {}

    def __call__(self, event: Event) -> int | None:
        match event:
            case Alloc():
                self._of_blocks[event.key] = event.stream // STREAMS
                return self._of_blocks[event.key]
            case Workspace():
                return event.stream // STREAMS
            case RecordStream():
                return self._of_blocks[event.key]
            case Free():
                return self._of_blocks.pop(event.key)
        return None
