"""Events of a shadow run: what happens to memory, in order. Plain data, no torch.

Two events of different kinds can be equal as tuples, so compare their types as well.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypedDict, cast, get_args, get_type_hints

from memlab.core.grouping import grouped
from memlab.core.schema import PlainOf
from memlab.core.value_types import Count, Index
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
        """Return the request at another site. ``_replace`` takes almost twice as long."""
        return Alloc(self.key, self.nbytes, self.stream, site, self.reduction)


class Workspace(NamedTuple):
    """The most memory that a library takes for one call. It gives the memory back at once, and can do without it.

    ``is_taken``: whether a replay requests it.
    """

    nbytes: Count
    stream: Count
    is_taken: bool = False


class Free(NamedTuple):
    """Free of a block of device memory. ``release_delay``: number of further requests until the block can be reused;
    only for blocks that side streams used (memory/release_delay.py)."""

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

KINDS: tuple[type[Any], ...] = get_args(Event)
"""All kinds of events."""

MAKE, FREE = (Alloc, HostAlloc), (Free, HostFree)
OF_A_BLOCK = (*MAKE, *FREE, RecordStream)
"""The kinds that make a block, that free one, and all that name a block by its key."""


event_of: Any = tuple.__new__
"""``event_of(kind, fields)`` is ``kind(*fields)`` without a call of Python code in between."""


def made(events: Iterable[Any]) -> list[int]:
    """List the keys of the blocks that the events make."""
    return [event.key for event in events if type(event) in MAKE]


def of_kinds(events: Iterable[Event], *kinds: type[Event]) -> Iterator[tuple[int, Any]]:
    """Yield the events of some kinds, each with its index. All others are passed over quickly."""
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


_list, _typed_dict = cast(Any, list), cast(Any, TypedDict)  # mypy wants types that are written out

_FIELDS = {
    kind.__name__: _typed_dict(
        kind.__name__, {name: _list[hint] for name, hint in get_type_hints(kind, include_extras=True).items()}
    )
    for kind in KINDS
}
Columns = _typed_dict("Columns", {"kinds": list[Index], **_FIELDS})
"""Form of events on disk. ``kinds`` has the index in ``KINDS`` of each event. Each kind has a list for each of its
fields, with the values of the events of this kind in their order. The list is empty if every value is the default."""


def to_columns(events: Sequence[Event]) -> dict[str, Any]:
    """Return the plain form of events (``Columns``)."""
    by_kind = grouped(events, type)
    numbers = {kind: number for number, kind in enumerate(KINDS)}
    columns: dict[str, Any] = {"kinds": [numbers[type(event)] for event in events]}
    for kind in KINDS:
        columns[kind.__name__] = {name: list(map(attrgetter(name), by_kind.get(kind, ()))) for name in kind._fields}
        for name, default in kind._field_defaults.items():
            if all(value == default for value in columns[kind.__name__][name]):
                columns[kind.__name__][name] = []
    return columns


def from_columns(columns: Mapping[str, Any]) -> list[Event]:
    """Return the events of this plain form. Raises ``ValueError`` if a list of values is too long or too short."""
    counts = Counter(columns["kinds"])
    made: list[Iterator[Event]] = []
    for number, kind in enumerate(KINDS):
        fields = {name: columns[kind.__name__][name] for name in kind._fields}
        for name, default in kind._field_defaults.items():
            fields[name] = fields[name] or [default] * counts[number]
        if any(len(values) != counts[number] for values in fields.values()):
            raise ValueError(f"a field of {kind.__name__} has more or fewer values than the {counts[number]} events")
        if kind is Alloc:
            fields["reduction"] = [numbers and scratch_of(numbers) for numbers in fields["reduction"]]
        made.append(map(event_of, repeat(kind), zip(*fields.values(), strict=True)) if fields else repeat(kind()))
    return [next(made[number]) for number in columns["kinds"]]
