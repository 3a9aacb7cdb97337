"""Parts of the memory outside torch's allocator: what appears in a run, each with its measured size."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from memlab.core.sizes import MIB
from memlab.files.json_file import read_json
from memlab.simulator.outside.appearances import ATTENTION, ATTENTION_BACKWARD, COMMUNICATOR, HANDLE, STREAM, Appearance

PIECE = 2 * MIB
"""The driver takes memory in pieces of this size, as the figures in results/explain/readings.csv show."""

SHIPPED = Path(__file__).parent / "sizes.json"
"""Sizes of memlab's own measurements, which ``make outside`` makes from results/."""


@dataclass(frozen=True)
class Size:
    """``nbytes``: the median of ``readings`` readings, of which ``alike`` are within 4 MiB."""

    nbytes: int
    readings: int
    alike: int


@dataclass(frozen=True)
class NcclSizes:
    """Sizes of NCCL in bytes. ``library``: once in a process. ``communicator``: of each group that is connected.
    ``collective``: with the first collective of a group; where each group had one, half of both. ``ranks``: that they
    were computed from. ``error``: the largest difference to the sum of a rank's readings."""

    library: int
    communicator: int
    collective: int
    ranks: int
    error: int


@dataclass(frozen=True)
class Sizes:
    """``gpu``, ``versions``, ``source``: where they were measured. ``stream``: of the first stream of high priority,
    which NCCL's own is, too. ``nccl_alone``: with groups of one rank, ``nccl``: of several ranks of a node."""

    gpu: str
    versions: str
    source: str
    context: Size
    first_kernel: Size
    stream: Size
    handle_in_forward: Size
    handle_in_backward: Size
    attention_forward: Size
    attention_backward: Size
    further_kernels: Size
    nccl_alone: NcclSizes
    nccl: NcclSizes

    @property
    def provenance(self) -> str:
        return f"measured in {self.source}" + (f" ({self.gpu})" if self.gpu else "")


@cache
def shipped() -> Sizes:
    """Return the sizes of memlab's own measurements."""
    values = read_json(SHIPPED.resolve())  # some installers link to the files of a package
    kinds: dict[str, Any] = {field.name: field.type for field in fields(Sizes) if field.type is not str}
    return Sizes(**{**values, **{name: kind(**values[name]) for name, kind in kinds.items()}})


CONTEXT = "CUDA context"
NCCL = "NCCL"  # communicators and buffers
CUBLAS = "cuBLAS handles"  # one for each thread, with the kernels of its first product
KERNELS = "kernels and libraries"  # the driver loads their code when they first run


class OutsidePart(NamedTuple):
    """``name``: of the part, as in a measured run; ``detail``: what of it. ``event``: index of the event of the trace
    from which on it is there."""

    event: int
    name: str
    detail: str
    nbytes: int


def outside_bytes(parts: Iterable[OutsidePart], event: int | None = None) -> int:
    """Return the bytes of the parts that are there after an event; ``None``: after the last one."""
    return sum(part.nbytes for part in parts if event is None or part.event <= event)


def parts_of(appearances: Sequence[Appearance], sizes: Sizes, first_request: int = 0) -> Iterator[OutsidePart]:
    """Yield the parts of a process that computes on a GPU. ``first_request``: index of the event from which on it has
    run kernels: the first request for memory."""
    first_handle = next((each.event for each in appearances if each.what == HANDLE), 0)
    yield OutsidePart(0, CONTEXT, "", sizes.context.nbytes)
    yield OutsidePart(first_request, KERNELS, "the first kernels", sizes.first_kernel.nbytes)
    yield OutsidePart(first_handle, KERNELS, "further kernels", sizes.further_kernels.nbytes)
    seen: set[str] = set()
    for each in appearances:
        yield from (OutsidePart(each.event, *part) for part in _of_library(each, seen, sizes))
        seen.add(each.what)


def _of_library(appearance: Appearance, seen: set[str], sizes: Sizes) -> list[tuple[str, str, int]]:
    """Return name, detail and bytes of what comes with an appearance. ``seen``: what has appeared before."""
    if appearance.what == HANDLE:
        is_first = HANDLE not in seen
        size = sizes.handle_in_forward if is_first else sizes.handle_in_backward
        return [(CUBLAS, "of the first thread" if is_first else "of a further thread", size.nbytes)]
    attention = {ATTENTION: sizes.attention_forward, ATTENTION_BACKWARD: sizes.attention_backward}
    if of_attention := attention.get(appearance.what):
        return [(KERNELS, appearance.what, of_attention.nbytes)]
    if appearance.what == STREAM:
        return [] if seen & {STREAM, COMMUNICATOR} else [(KERNELS, STREAM, sizes.stream.nbytes)]
    return list(_of_nccl(appearance, seen, sizes))


def _of_nccl(appearance: Appearance, seen: set[str], sizes: Sizes) -> Iterator[tuple[str, str, int]]:
    nccl: NcclSizes = sizes.nccl_alone if appearance.ranks == 1 else sizes.nccl
    group = group_in_words(appearance.cause, appearance.ranks)
    if appearance.what == COMMUNICATOR and COMMUNICATOR not in seen:
        yield NCCL, "the library", nccl.library
        if STREAM not in seen:
            yield NCCL, f"its {STREAM}", sizes.stream.nbytes
    if appearance.what == COMMUNICATOR:
        yield NCCL, f"communicator of {group}", nccl.communicator
    else:
        yield NCCL, f"first collective of {group}", nccl.collective


def group_in_words(name: str, ranks: int) -> str:
    """Name a process group. ``name``: torch's, or ``a group`` for one that has none."""
    words = {"default_pg": "the default group", "a group": "a further group"}.get(name, f"group {name}")
    return f"{words} ({ranks} rank{'s' * (ranks > 1)})"
