"""Memory of a GPU outside torch's allocator, in parts. Each part is what the driver's figure grew by while it appeared.

The ranks read the driver's figure around each module, collective and part of the run (attach/driver_readings.py), less
what torch's allocator held then. What grew between two readings belongs to what ran between them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memlab.analyse.explain.accounting import Share, layers_together, sum_of
from memlab.analyse.explain.snapshot import Entry

PROCESSES = "other processes"
CONTEXT = "CUDA context"
NCCL = "NCCL: communicators and buffers"
CUBLAS = "cuBLAS: a handle for each thread, with its first product"
KERNELS = "kernels and libraries, loaded when they first run"

OLD_CONTEXT = "CUDA context, and other processes"
"""What was there first, in marks that do not say what was in use before the process came."""

MAKES_CONTEXT = ("set_device", "_apply")
"""Calls that make the context: torch.cuda.set_device, and Module.to, which calls Module._apply for each module."""

MAKES_HANDLE = "getCurrentCUDABlasHandle"
"""Function of torch that makes a cuBLAS handle for a thread, and requests its workspace from the allocator
(aten/src/ATen/cuda/CublasHandlePool.cpp)."""


class Reading(NamedTuple):
    """Sizes in bytes. ``phase``, ``module``, ``call``: what ran since the reading before.

    ``outside``: on the whole GPU, less what torch's allocator held. ``others``: of other processes, by the driver;
    ``None``: it does not tell of processes, as in some containers. ``time_us`` to ``until_us``: when the figure was
    this; ``None`` in old marks, which have one reading at the end of each ``piece`` of the run.
    """

    phase: str
    outside: int
    module: str = ""
    call: str | None = None
    others: int | None = None
    time_us: int | None = None
    until_us: int | None = None
    piece: int = 0

    def is_before(self, piece: int, time_us: float) -> bool:
        return self.piece <= piece if self.time_us is None else self.time_us <= time_us


@dataclass(frozen=True)
class Readings:
    """``before``: the reading before the process used the GPU; ``None``: not known."""

    before: Reading | None
    readings: Sequence[Reading]


class Outside:
    """What is outside the allocator at any moment.

    ``handles``: when cuBLAS handles were made, in microseconds (:func:`handles_made`).
    """

    def __init__(self, readings: Readings, handles: Sequence[int]):
        self._readings, self._before, self._handles = readings.readings, readings.before, handles
        self._grown = [list(self._grew(*pair)) for pair in zip([None, *self._readings], self._readings, strict=False)]

    def shares(self, piece: int, time_us: float) -> tuple[Share, ...]:
        """Return the parts that had appeared by the last reading before a moment."""
        known = self._number_before(piece, time_us)
        return _tree("outside", [part for grown in self._grown[:known] for part in grown]).parts

    def nearest(self, piece: int, time_us: float) -> int:
        """Return the bytes outside the allocator by the reading that is nearest to a moment."""
        known = self._number_before(piece, time_us)
        if known == len(self._readings) or (known and self._is_nearer(known - 1, known, time_us)):
            return self._readings[known - 1].outside if known else 0
        return self._readings[known].outside

    def _number_before(self, piece: int, time_us: float) -> int:
        return sum(reading.is_before(piece, time_us) for reading in self._readings)

    def _is_nearer(self, first: int, second: int, time_us: float) -> bool:
        until, begin = self._readings[first].until_us, self._readings[second].time_us
        return until is None or begin is None or time_us - until <= begin - time_us

    def _grew(self, last: Reading | None, now: Reading) -> Iterable[tuple[tuple[str, ...], int]]:
        """Yield what appeared since the last reading: the names from part to sub-part, and bytes."""
        if last is None:
            last = self._before
            if last is None:
                yield (OLD_CONTEXT,), now.outside
                return
            yield (PROCESSES,), last.outside
            appeared: tuple[str, ...] = (_context(now),)
        else:
            appeared = self._what_ran(last, now)
        others = 0 if now.others is None or last.others is None else now.others - last.others
        yield (PROCESSES,), others
        yield appeared, now.outside - last.outside - others

    def _what_ran(self, last: Reading, now: Reading) -> tuple[str, ...]:
        if now.call is not None and now.call not in MAKES_CONTEXT:
            return NCCL, f"{now.call}, in {_place(now)}"
        window = (last.until_us, now.time_us)
        if None not in window and any(window[0] <= time <= window[1] for time in self._handles):
            return CUBLAS, _place(now)
        return KERNELS, now.phase or "outside all phases", layers_together(now.module) or "outside all modules"


def handles_made(entries: Iterable[Entry]) -> list[int]:
    """Return when torch requested the workspace of a new cuBLAS handle, in microseconds of the host's clock."""
    return [
        entry.time_us
        for entry in entries
        if entry.action == "alloc" and any(MAKES_HANDLE in frame.function for frame in entry.stack)
    ]


def _context(reading: Reading) -> str:
    alone = reading.call in MAKES_CONTEXT
    return CONTEXT if alone else f"{CONTEXT}, and what else came in {_place(reading)}"


def _place(reading: Reading) -> str:
    return ": ".join(filter(None, (reading.phase or "no phase", reading.module)))


def _tree(name: str, parts: Iterable[tuple[tuple[str, ...], int]]) -> Share:
    groups: dict[str, list[tuple[tuple[str, ...], int]]] = defaultdict(list)
    total = 0
    for names, nbytes in parts:
        total += nbytes
        if names:
            groups[names[0]].append((names[1:], nbytes))
    return sum_of(name, [_tree(key, members) for key, members in groups.items()]) if groups else Share(name, total)
