"""Work of one training step, in order: plain data that a shadow run writes. No torch needed.

Every item begins with two counts: ``operators`` that the host dispatched, and ``modules`` whose ``forward`` it entered,
since the item before. Two items of different kinds can be equal as tuples, so compare their types as well.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from memlab.core.schema import Limits, Range
from memlab.core.value_types import AtLeastOne, Count, OrNone
from memlab.simulator.trace.columns import Columns, tuple_of


class Launcher(NamedTuple):
    """What launches a kernel: the operator, or the function of a compiled library; and the module whose forward runs
    (empty: none)."""

    operator: str
    module: str


class KernelLaunch(NamedTuple):
    """Launch of a kernel on a stream. ``precision``: SINGLE, HALF or TF32; ``sizes``: bytes of each tensor that is read
    or written; ``launcher``: index in ``Trace.launchers``; ``NOT_NAMED``: not known."""

    operators: Count
    modules: Count
    stream: Count
    precision: Annotated[int, Limits(range=Range(0, 2))]
    flops: Count
    sizes: tuple[Count, ...]
    launcher: OrNone = -1


class Copy(NamedTuple):
    """Copy of ``nbytes`` from or to the host. ``blocking``: the host waits for it; ``route``: PINNED, ..."""

    operators: Count
    modules: Count
    stream: Count
    blocking: bool
    route: Annotated[int, Limits(range=Range(0, 3))]
    nbytes: Count


class Collective(NamedTuple):
    """Collective over ``nbytes``, the size of the whole tensor (all-gather: of its output). ``kind``: index in
    ``COLLECTIVES``."""

    operators: Count
    modules: Count
    stream: Count
    kind: Annotated[int, Limits(range=Range(0, 5))]
    ranks: AtLeastOne
    nbytes: Count


class StreamWaitsForCollective(NamedTuple):
    """Wait of a stream for a collective, by its number in this step."""

    operators: Count
    modules: Count
    stream: Count
    collective: Count


class RecordEvent(NamedTuple):
    """CUDA event recorded on a stream. ``event``: its number in this step."""

    operators: Count
    modules: Count
    stream: Count
    event: OrNone


class StreamWaitsForEvent(NamedTuple):
    operators: Count
    modules: Count
    stream: Count
    event: OrNone


class HostWaits(NamedTuple):
    """Wait of the host for an event, or for everything that it has launched (``EVERYTHING``)."""

    operators: Count
    modules: Count
    event: OrNone


class HostWork(NamedTuple):
    """Work of the host on its own memory. ``sizes``: bytes of each host tensor that is read or written."""

    operators: Count
    modules: Count
    sizes: tuple[Count, ...]


class BeginWorkPhase(NamedTuple):
    operators: Count
    modules: Count
    phase: Count  # index in ``Trace.phases``


Item = (
    KernelLaunch
    | Copy
    | Collective
    | StreamWaitsForCollective
    | RecordEvent
    | StreamWaitsForEvent
    | HostWaits
    | HostWork
    | BeginWorkPhase
)


class StepWork(NamedTuple):
    """Work of a part of the run. ``events_before``: events of the part before each item. ``operators``, ``modules``:
    those after the last item. Recorded events are numbered from 0."""

    items: list[Item]
    events_before: list[int]
    operators: int
    modules: int


ITEM_COLUMNS = Columns(Item, {"sizes": tuple})
"""Plain form of items."""

NUMBERED = {
    StreamWaitsForCollective: ("collective", Collective),
    RecordEvent: ("event", RecordEvent),
    StreamWaitsForEvent: ("event", RecordEvent),
    HostWaits: ("event", RecordEvent),
}
"""Kind -> its field with the number of a collective or an event, and the kind of item that is numbered."""

EVERYTHING = -1

NOT_NAMED = -1

SINGLE, HALF, TF32 = range(3)
"""Precision in which a kernel computes. TF32: tensor cores read numbers in single precision and round them."""

PINNED, PAGEABLE, CONVERTED_TO_HOST, CONVERTED_FROM_HOST = range(4)
"""Host memory that a copy uses: pinned, pageable, or a temporary buffer for a conversion on the host. The buffer's new
pages take the longest: one thread of the driver touches them in a copy to the host, all converting threads in a copy
from the host."""

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")

HOST_MINIMUM_BYTES = 1 << 20
"""Operators on less host memory are only counted, without a HostWork item."""


def amounts(item: Item) -> tuple[int, ...]:
    """Return the FLOPs and bytes of an item: its fields that depend on batch and tokens."""
    if isinstance(item, KernelLaunch):
        return (item.flops, *item.sizes)
    if isinstance(item, HostWork):
        return item.sizes
    return (item.nbytes,) if isinstance(item, Copy | Collective) else ()


def with_amounts(item: Item, new: tuple[int, ...]) -> Item:
    """Return the item with other FLOPs and bytes, in the order of :func:`amounts`."""
    if isinstance(item, KernelLaunch):
        return tuple_of(KernelLaunch, (*item[:4], new[0], new[1:], item.launcher))
    if isinstance(item, HostWork):
        return item._replace(sizes=new)
    return item._replace(nbytes=new[0]) if isinstance(item, Copy | Collective) else item


def fixed_fields(item: Item) -> tuple[int, ...]:
    """Return the fields that do not depend on batch and tokens, with the number of FLOPs and bytes. ``operators`` is
    left out: it may depend on the batch, because views are counted. Views take no memory."""
    if isinstance(item, KernelLaunch):
        return item.modules, item.stream, item.precision, len(item.sizes)
    if isinstance(item, Copy | Collective):
        return item[1:-1]  # without their bytes
    return (item.modules, len(item.sizes)) if isinstance(item, HostWork) else item[1:]


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


def cut_work(items: Sequence[Item], keep: Sequence[bool], collectives_before: int) -> list[Item]:
    """Return the items to ``keep``, with events and collectives numbered from 0.

    ``collectives_before``: number of collectives that ran before ``items``. A wait for something that is not kept is
    over before the step: only its operators and modules stay. A wait for ``EVERYTHING`` stays as it is.
    """
    numbers: dict[type, dict[int, int]] = {RecordEvent: {}, Collective: {}}
    collectives, found = collectives_before, []
    for item, kept in zip(items, keep, strict=True):
        if isinstance(item, Collective):
            if kept:
                numbers[Collective][collectives] = len(numbers[Collective])
            collectives += 1
        elif kept and isinstance(item, RecordEvent):
            numbers[RecordEvent][item.event] = len(numbers[RecordEvent])
        if kept:
            found.append(renumbered(item, lambda kind, number: number if number < 0 else numbers[kind].get(number)))
    return found


def renumbered(item: Any, new: Callable[[type, int], int | None]) -> Any:
    """Return the item with another number of its event or collective: ``new(kind, number)``. Where that is ``None``,
    only its operators and modules stay."""
    if type(item) not in NUMBERED:
        return item
    field, kind = NUMBERED[type(item)]
    number = new(kind, getattr(item, field))
    return HostWork(item.operators, item.modules, ()) if number is None else item._replace(**{field: number})
