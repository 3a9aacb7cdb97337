"""Format of a trace: the events and the work of one rank at one batch and length, as a shadow run writes them.

The events can be applied to an allocator, one by one.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, compress
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from memlab.core.errors import RecordError
from memlab.core.record_schema import Epoch
from memlab.core.schema import PlainOf, check_of
from memlab.core.value_types import AtLeastOne, Count, Figure, Index, Seconds
from memlab.files.disk import write_whole
from memlab.files.regular_file import read_regular
from memlab.meters.garbage_collector import paused_garbage_collector
from memlab.meters.owner import Owner
from memlab.simulator.allocator import CachingAllocator, OutOfMemory
from memlab.simulator.outside.appearances import Appearance
from memlab.simulator.trace.epoch_batches import EpochOrder
from memlab.simulator.trace.events import (
    EVENT_COLUMNS,
    FREE,
    MAKE,
    Alloc,
    BeginPhase,
    EmptyCache,
    Event,
    Free,
    HostAlloc,
    RecordStream,
    Synchronize,
    Workspace,
    of_kinds,
)
from memlab.simulator.trace.work_items import ITEM_COLUMNS, NUMBERED, Item, Launcher

CHOICES = GENERATION, ROUTING, SELECTION = "generation", "routing", "selection"
"""What a program may choose by unknown values: tokens, whose number is the length of a generation; experts (or other
rows of a tensor), each of which gets a number of tokens; and elements, by a mask, as ``nonzero`` does."""

DECIDED = ", which decided a branch"
"""End of the sentences of ``Trace.assumed`` about values that a condition depends on."""


MOST_GPUS = 64
"""Of a process: rank/native/guard.cpp."""

_ARGUMENTS = re.compile(r"_(memory_format$|Tensor\b|Scalar\b|Tensor_.*|Scalar_.*)")


@dataclass(frozen=True)
class Site:
    """Place in the code that made an allocation. ``kind``: the purpose of the memory (trace/memory_kinds.py);
    ``where``: file and line, or the name of the backward node that ran. ``user_line``: the line of the user's own
    script that led there; empty in memlab's own training. All are empty for small allocations. ``owner``: of the memory
    of parameters, gradients and optimizer states; ``module`` and ``kind`` are then the owner's."""

    kind: str
    op: str
    where: str
    function: str
    module: str
    shape: tuple[Count, ...]
    user_line: str = ""
    owner: Owner | None = None

    @property
    def operator(self) -> str:
        """The operator as torch's C++ code names it, without the kinds of its arguments: ``mul`` for ``mul_Tensor``,
        ``empty`` for ``empty_memory_format``."""
        return _ARGUMENTS.sub("", self.op.removeprefix("aten.").removesuffix(".default").replace(".", "_"))

    def owned_by(self, owner: Owner) -> "Site":
        return replace(self, kind=owner.kind, module=owner.module, owner=owner)

    def changed(self, **fields: Any) -> "Site":
        """Return a copy with other fields, in a third of the time of ``replace``: a generation has a million sites."""
        other = object.__new__(Site)
        vars(other).update(vars(self), **fields)
        return other


@dataclass(frozen=True)
class Piece:
    """Part of a command's run from one BeginPhase event to the next, as memlab's meters cut the run.

    ``step``: the optimizer step that it belongs to, from 1; ``None`` outside the steps. ``where``: the line of the
    user's script at its beginning. ``ends_phase``: whether the phase is over at its end. ``step_of_epoch``: the step of
    the whole epoch that it stands for, if it is not ``step`` (memory/whole_epoch.py).
    """

    step: Count | None
    where: str | None
    ends_phase: bool
    step_of_epoch: Count | None = None

    @property
    def shown_step(self) -> int | None:
        """The step to name to the user."""
        return self.step_of_epoch or self.step


@dataclass
class Trace:
    """The events of one rank at one (batch, tokens), from the building of the model to the end of the last step.

    The trace of a command holds all its steps, of any batches, and what comes before, between and after them.
    """

    rank: Index
    world_size: AtLeastOne
    micro: Count = 0
    tokens: Count = 0
    events: Annotated[list[Event], PlainOf(EVENT_COLUMNS.schema)] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    sites: Annotated[list[Site], PlainOf(list[Site | list[Count]])] = field(default_factory=list)
    steps: list[Count] = field(default_factory=list)  # index of the first event of each optimizer step
    smooth_from: Count | None = 1  # tokens in a batch from which the size formulas hold (interpolate.py); None: never
    work: Annotated[list[Item], PlainOf(ITEM_COLUMNS.schema)] = field(default_factory=list)  # of the last step
    events_before: list[Count] = field(default_factory=list)  # for each item of ``work``: number of events before it
    pieces: list[Piece] = field(default_factory=list)  # of a command: one for each BeginPhase event
    # Of a command: of the steps before the last, in order.
    earlier_work: Annotated[list[list[Item]], PlainOf(list[ITEM_COLUMNS.schema])] = field(default_factory=list)
    launchers: list[Launcher] = field(default_factory=list)  # of the kernels of all work
    appearances: list[Appearance] = field(default_factory=list)  # of what takes memory outside the allocator
    gpu: Index | None = None  # of a command: index of its GPU on the node; None: not known
    gpus: list[Index] = field(default_factory=list)  # of a process with several GPUs: their indices, by their numbers
    beside: Count = 0  # of a command: bytes that other ranks take of the same GPU
    allocator_conf: str = ""  # of a command: the allocator's settings when the process first used a GPU
    model_flops: tuple[Figure, Figure] | None = None  # of a sample: for each token, for each pair (training/flops.py)
    unknown: dict[str, str] = field(default_factory=dict)  # quantities that could not be computed -> reason
    assumed: dict[str, Count] = field(default_factory=dict)  # sentence about a read of an unknown value -> times
    choices: list[str] = field(default_factory=list)  # of these three: where sizes or branches followed from them
    # Epochs that were read ahead: rank/short_epochs.py.
    epochs: Annotated[list[dict[str, Any]], PlainOf(list[Epoch])] = field(default_factory=list)
    order: EpochOrder | None = None  # of the epoch that was shortened; None: all ran, or it is not known
    parameters: Count = 0
    trainable_parameters: Count = 0
    seconds: Seconds = 0.0  # CPU time of the shadow run, with the start of the engine, which other traces may share

    def phase_number(self, name: str) -> int:
        """Return the index of a phase in ``phases``, which gets a new one at its end."""
        if name not in self.phases:
            self.phases.append(name)
        return self.phases.index(name)

    @property
    def phase_begins(self) -> dict[int, str]:
        """Return event (index in ``events``) -> name of the phase that begins with it."""
        return {index: self.phases[event.phase] for index, event in of_kinds(self.events, BeginPhase)}

    def only(self, kept: Sequence[bool]) -> "Trace":
        """Return the trace with those of its events alone that are ``kept``."""
        before = [0, *accumulate(kept)]  # kept ones before each event
        return replace(
            self,
            events=list(compress(self.events, kept)),
            steps=[before[step] for step in self.steps],
            events_before=[before[number] for number in self.events_before],
            appearances=[each._replace(event=before[each.event]) for each in self.appearances],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "events": EVENT_COLUMNS.to_json(self.events),
            "work": ITEM_COLUMNS.to_json(self.work),
            "earlier_work": list(map(ITEM_COLUMNS.to_json, self.earlier_work)),
            "sites": _plain(self.sites),
            "pieces": list(map(vars, self.pieces)),
            "order": self.order and vars(self.order),
        }

    @paused_garbage_collector()
    def save(self, path: Path) -> None:
        """Write the trace, whole or not at all. Raises :class:`WriteError`, which names ``path``."""
        write_whole(path, json.dumps(self.to_json(), separators=(",", ":"), check_circular=False).encode())

    def check(self) -> None:
        """Raise ``ValueError`` if the trace names what is not in it."""
        keys: dict[type, set[int]] = {Alloc: set(), HostAlloc: set()}
        events: list[Any] = self.events
        for number, event in enumerate(events):
            kind = type(event)  # comparing types is faster than matching
            if kind in MAKE:
                known = keys[kind]
                is_good = event.key not in known and getattr(event, "site", -1) < len(self.sites)
                known.add(event.key)
            elif kind in FREE:
                known = keys[Alloc if kind is Free else HostAlloc]
                is_good = event.key in known
                known.discard(event.key)
            elif kind is RecordStream:
                is_good = event.key in keys[Alloc]
            else:
                is_good = getattr(event, "phase", -1) < len(self.phases)
            if not is_good:
                raise ValueError(f"event {number} does not fit those before it")
        for work in (self.work, *self.earlier_work):
            counted: Counter[type] = Counter()
            for number, item in enumerate(work):
                counted[type(item)] += 1
                name, of_kind = NUMBERED.get(type(item), ("launcher", None))
                limit = len(self.launchers) if of_kind is None else counted[of_kind]
                if getattr(item, name, -1) >= limit or getattr(item, "phase", -1) >= len(self.phases):
                    raise ValueError(f"item {number} of a step's work does not fit those before it")
        bounds = ([*numbers, len(self.events)] for numbers in (self.steps, self.events_before))
        if any(numbers != sorted(numbers) for numbers in bounds):
            raise ValueError("steps or events_before are not in order")
        if self.order is not None:
            self.order.check()
        if len(self.events_before) not in (0, len(self.work)) or len(self.pieces) not in (0, len(self.phase_begins)):
            raise ValueError("events_before or pieces have another length")
        if any(each.event > len(self.events) for each in self.appearances):
            raise ValueError("something appears after the last event")
        if self.gpus and (self.world_size > 1 or len({*self.gpus}) < len(self.gpus) or max(self.gpus) >= MOST_GPUS):
            raise ValueError("gpus are not those of one process")

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """Read a trace. Raises :class:`RecordError`, with what to do, for one that another memlab has made."""
        try:
            return cls.from_json(json.loads(read_regular(path)))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise _not_a_trace(path, error) from error

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Trace":
        """Make a trace of its plain values, which change."""
        values["events"] = EVENT_COLUMNS.from_json(values["events"])
        values["work"] = ITEM_COLUMNS.from_json(values["work"])
        values["earlier_work"] = list(map(ITEM_COLUMNS.from_json, values["earlier_work"]))
        values["appearances"] = [Appearance(*each) for each in values["appearances"]]
        values["launchers"] = [Launcher(*launcher) for launcher in values["launchers"]]
        values["pieces"] = [Piece(**piece) for piece in values["pieces"]]
        values["sites"] = _sites(values["sites"])
        values["order"] = EpochOrder(**order) if (order := values["order"]) else None
        return cls(**values)


Traces = Mapping[int, Trace]
"""The traces of several ranks, by rank."""


def _not_a_trace(path: Path, error: Exception) -> RecordError:
    told = f"not a trace of this version of memlab ({type(error).__name__}: {error})"
    return RecordError(f"{path}: {told}. Delete it, and predict again.")


def trace_of_command(path: Path) -> Trace:
    """Read the trace of a command, which its script could have written. Raises :class:`RecordError`."""
    try:
        values = json.loads(read_regular(path))
        check_of(Trace)(values)
        trace = Trace.from_json(values)
        trace.check()
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise _not_a_trace(path, error) from error
    return trace


BUT_SHAPE = attrgetter("kind", "op", "where", "function", "module", "user_line", "owner")
"""Returns the fields of a :class:`Site` without its shape."""


def _plain(sites: Sequence[Site]) -> list[dict[str, Any] | list[int]]:
    """Return the plain form of sites. Of one that differs from an earlier one in its shape alone, it is the number of
    that one and the shape: a generation has a million of them."""
    first: dict[tuple, int] = {}
    numbers = (first.setdefault(BUT_SHAPE(site), number) for number, site in enumerate(sites))
    pairs = enumerate(zip(numbers, sites, strict=True))
    return [vars(site) if number == alike else [alike, *site.shape] for number, (alike, site) in pairs]


def _sites(plain: Sequence[dict[str, Any] | list[int]]) -> list[Site]:
    sites: list[Site] = []
    for values in plain:
        if isinstance(values, dict):
            owner = values["owner"]
            whole = {**values, "shape": tuple(values["shape"]), "owner": None if owner is None else Owner(*owner)}
            sites.append(Site(**whole))
        else:
            number, *shape = values
            sites.append(sites[number].changed(shape=tuple(shape)))
    return sites


_WORKSPACE = -1
"""Key of a workspace, which is freed before the next request."""


def apply(event: Event, allocator: CachingAllocator) -> None:
    """Let ``allocator`` do what the event says; events of other memory and marks change nothing.

    Raises :class:`OutOfMemory` for a request without room.
    """
    known: Any = event  # of the type that ``kind`` says: comparing types is faster than isinstance
    kind = type(event)
    if kind is Alloc:
        allocator.malloc(known.key, known.nbytes, known.stream)
    elif kind is Free:
        allocator.free(known.key, known.release_delay)
    elif kind is RecordStream:
        allocator.record_stream(known.key, known.stream)
    elif kind is Synchronize:
        allocator.synchronize(known.requests)
    elif kind is EmptyCache:
        allocator.empty_cache()
    elif kind is Workspace and known.is_taken:
        allocator.malloc(_WORKSPACE, known.nbytes, known.stream)
        allocator.free(_WORKSPACE)


def replayed(trace: Trace, allocator: CachingAllocator) -> Iterator[CachingAllocator]:
    """Yield the ``allocator``, which must be new, after each event, until a request finds no room."""
    for event in trace.events:
        try:
            apply(event, allocator)
        except OutOfMemory:
            return
        yield allocator
