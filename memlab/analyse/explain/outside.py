"""Memory of a GPU outside torch's allocator, in parts. Each part is what the driver's figure grew by while it appeared.

The ranks read the driver's figure around each module, collective and part of the run (meters/driver_readings.py), less
what torch's allocator held then. What grew between two readings belongs to what ran between them.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, TypedDict

from memlab.analyse.explain.accounting import OUTSIDE_MODULES, Share, layers_together, tree
from memlab.analyse.explain.snapshot import Entry
from memlab.core.value_types import Bytes, Count
from memlab.simulator.outside.parts import CONTEXT, CUBLAS, KERNELS, NCCL, OutsidePart, group_in_words

PROCESSES = "other processes"
RANKS = "other ranks, which compute on other GPUs"

CUDNN = "cuDNN"  # its handles, and the kernels of convolutions
TRITON = "Triton kernels"

SET_DEVICE = "set_device"

MAKES_CONTEXT = (SET_DEVICE, "_apply", "parameter")
"""Calls that make the context: torch.cuda.set_device; Module.to, which calls Module._apply for each module; the request
for the first parameter of a model that is built on the GPU."""

NAMED_CALLS = {"convolution": CUDNN, "Triton kernel": TRITON}
"""First words of a reading's call -> part. All other calls, but those of ``MAKES_CONTEXT``, are collectives. The
reading of a convolution comes after its whole module has run, so it includes what cuBLAS took there."""

OF_A_GROUP = re.compile(r"(.+) of (.+) \((\d+) ranks?\)")
"""Call of a collective's reading: its function, its group, and the number of ranks (meters/collectives.py)."""

COLLECTIVES = {
    "eager_connect_single_device": "communicator",
    "_verify_params_across_processes": "DDP's check of the parameters",
    "_broadcast_coalesced": "DDP's broadcast",
}
"""Function that starts a collective or makes a communicator -> its name in words, where its own says little."""

ALL_AT_ONCE = "everything"
"""Call of a reading that an out-of-memory takes in a rank that records no history: it is the rank's only one."""

NOT_TOLD_APART = "CUDA context, NCCL, cuBLAS handles and kernels"

MAKES_HANDLE = "getCurrentCUDABlasHandle"
"""Function of torch that makes a cuBLAS handle for a thread, and requests its workspace from the allocator
(aten/src/ATen/cuda/CublasHandlePool.cpp)."""


class UsedMarks(TypedDict):
    """Bytes in use on a whole GPU. ``processes``: id of each process on it -> bytes, by the driver, which does not tell
    of processes in some containers."""

    used_bytes: Bytes
    processes: dict[str, Bytes]


class ReadingMarks(UsedMarks):
    """A reading of the driver's figure (meters/driver_readings.py). ``phase``, ``module``, ``call``: what ran since the
    reading before. ``reserved_bytes``: what torch's allocator held. ``time_us`` to ``until_us``: when the figure was
    this, in microseconds of the host's clock."""

    phase: str | None
    module: str
    call: str | None
    reserved_bytes: Bytes
    time_us: Count
    until_us: Count


class GpuMarks(TypedDict):
    """All that the driver told of one GPU. ``gpu``: NVML's index; ``before``: in use before this process used it;
    ``None``: not known."""

    gpu: Count | None
    before: UsedMarks | None
    readings: list[ReadingMarks]


def outside_at(reading: ReadingMarks) -> int:
    """Return what is in use on the whole GPU, less what torch's allocator held."""
    return reading["used_bytes"] - reading["reserved_bytes"]


class Outside:
    """The memory of a GPU outside torch's allocator, at any moment of a rank's run. ``pid``: of the rank's process.

    ``handles``: when cuBLAS handles were made, in microseconds (:func:`handles_made`). ``strays``: process id -> rank,
    of the ranks of this run that compute on other GPUs. ``changes``: the moments from which :meth:`shares` or
    :meth:`total` can differ from before, in microseconds.
    """

    def __init__(self, marks: GpuMarks, pid: str, handles: Sequence[int], strays: Mapping[str, int] | None = None):
        self._readings, self._before, self._pid, self._handles = marks["readings"], marks["before"], pid, handles
        self._strays = strays or {}
        self.changes = [(last["until_us"] + now["time_us"]) / 2 for last, now in pairwise(self._readings)]
        self._grown = [list(self._grew(*pair)) for pair in zip([None, *self._readings], self._readings, strict=False)]

    def shares(self, time_us: float) -> tuple[Share, ...]:
        """Return the parts by the reading that is nearest to a moment. Those of the first reading are there from the
        beginning: without a context nothing can be allocated."""
        return tree("outside", [part for grown in self._grown[: self._nearest(time_us) + 1] for part in grown]).parts

    def total(self, time_us: float) -> int:
        """Return the bytes outside the allocator by the same reading; 0 without readings."""
        return outside_at(self._readings[self._nearest(time_us)]) if self._readings else 0

    def _nearest(self, time_us: float) -> int:
        """Return the index of the reading that is nearest to a moment: of two, the later one from halfway on."""
        return bisect_right(self.changes, time_us)

    def _grew(self, last: ReadingMarks | None, now: ReadingMarks) -> Iterable[tuple[tuple[str, ...], int]]:
        """Yield what appeared since the last reading: the names from part to sub-part, and bytes."""
        if last is None and self._before is None and self._told_of_others(now) is None:
            yield (f"{_context(now)[0]} and {PROCESSES}",), outside_at(now)
            return
        others = list(self._others(last, now))
        yield from others
        what = _context(now) if last is None else self._what_ran(last, now)
        yield (what, outside_at(now) - (outside_at(last) if last else 0) - sum(nbytes for _, nbytes in others))

    def _others(self, last: ReadingMarks | None, now: ReadingMarks) -> Iterable[tuple[tuple[str, ...], int]]:
        """Yield what other processes use more than at the last reading, or all of it if there was none."""
        before: Mapping[str, int] | None = {}
        after = self._told_of_others(now)
        if last is None:
            there = self._before or UsedMarks(used_bytes=0, processes={})
            told = self._of_others(there)
            yield (PROCESSES,), there["used_bytes"] - sum(told.values())
            after = told if after is None else after
        else:
            before = self._told_of_others(last)
        if before is not None and after is not None:
            for process in before.keys() | after.keys():
                rank = self._strays.get(process)
                names = (PROCESSES,) if rank is None else (RANKS, f"rank {rank}")
                yield names, after.get(process, 0) - before.get(process, 0)

    def _told_of_others(self, reading: ReadingMarks) -> dict[str, int] | None:
        """Return other process -> bytes; ``None`` if the driver does not tell of processes."""
        return self._of_others(reading) if self._pid in reading["processes"] else None

    def _of_others(self, marks: UsedMarks) -> dict[str, int]:
        return {process: nbytes for process, nbytes in marks["processes"].items() if process != self._pid}

    def _what_ran(self, last: ReadingMarks, now: ReadingMarks) -> tuple[str, ...]:
        call = now["call"]
        part = next((part for first, part in NAMED_CALLS.items() if (call or "").startswith(first)), None)
        if call is not None and part != CUDNN and call not in MAKES_CONTEXT:
            return part or NCCL, f"{_in_words(call)}, in {_place(now)}"
        if any(last["until_us"] <= time <= now["time_us"] for time in self._handles):
            return CUBLAS, _place(now)
        if part == CUDNN:
            return CUDNN, _place(now)
        return KERNELS, now["phase"] or "outside all phases", layers_together(now["module"]) or OUTSIDE_MODULES


def handles_made(entries: Iterable[Entry]) -> list[int]:
    """Return when torch requested the workspace of a new cuBLAS handle, in microseconds of the host's clock."""
    return [
        entry.time_us
        for entry in entries
        if entry.action == "alloc" and any(MAKES_HANDLE in frame.function for frame in entry.stack)
    ]


def _in_words(call: str) -> str:
    """Name a call of a reading; a collective's with its group."""
    found = OF_A_GROUP.fullmatch(call)
    if found is None:
        return call
    function, group, ranks = found.groups()
    return f"{COLLECTIVES.get(function, function)} of {group_in_words(group, int(ranks))}"


def _context(reading: ReadingMarks) -> tuple[str, ...]:
    call = reading["call"]
    if call == ALL_AT_ONCE:
        return (NOT_TOLD_APART,)
    has_run = call == SET_DEVICE and reading["reserved_bytes"]  # something, on another device or this one
    alone = call in MAKES_CONTEXT and not has_run
    return (CONTEXT,) if alone else (CONTEXT, f"with all that came in {_place(reading)}")


def _place(reading: ReadingMarks) -> str:
    return ": ".join(filter(None, (reading["phase"] or "no phase", reading["module"])))


@dataclass(frozen=True)
class ModelledDevice:
    """The device of a prediction. ``parts``: what comes outside the allocator. ``provenance``: of their sizes."""

    parts: Sequence[OutsidePart]
    provenance: str = ""
    index: int = 0
    elsewhere: Mapping[int, int] = field(default_factory=dict)

    @property
    def changes(self) -> Sequence[int]:
        """Events from which :meth:`outside` or :meth:`driver` can differ from before, in order; the first one is 0."""
        return sorted({0, *(part.event for part in self.parts)})

    def outside(self, event: int) -> tuple[Share, ...]:
        """Return the memory outside the allocator after an event, in parts."""
        there = [part for part in self.parts if part.event <= event]
        return tree("outside", [(tuple(filter(None, (part.name, part.detail))), part.nbytes) for part in there]).parts

    def driver(self, event: int) -> int | None:
        """Return the driver's figure after an event; ``None`` in a prediction."""
        return None


@dataclass(frozen=True)
class MeasuredDevice:
    """The device of a recorded history, whose driver was read.

    ``driver_readings``: what was read. ``reserved``: of the allocator after each event, in bytes. ``until_us``: the
    last microsecond before the next event, for each event, by the clock of the readings. A phase ends with a reading
    after its last event, and that reading counts for this event.
    """

    driver_readings: Outside
    reserved: Sequence[int]
    until_us: Sequence[float]
    index: int = 0
    elsewhere: Mapping[int, int] = field(default_factory=dict)
    provenance: ClassVar[str] = ""

    @property
    def changes(self) -> Sequence[int]:
        times = self.until_us
        around = {find(times, time) for time in self.driver_readings.changes for find in (bisect_left, bisect_right)}
        return sorted({0, *around} - {len(times)})

    def outside(self, event: int) -> tuple[Share, ...]:
        return self.driver_readings.shares(self.until_us[event])

    def driver(self, event: int) -> int | None:
        return self.reserved[event] + self.driver_readings.total(self.until_us[event])


Device = ModelledDevice | MeasuredDevice
"""The device of a rank. Sizes in bytes; events are indices in the trace of the history. ``index``: of the GPU in its
process. ``elsewhere``: index of each other GPU of the process -> the most bytes that the allocator held there.
``provenance``: where the sizes outside the allocator come from; empty if the run itself was read."""
