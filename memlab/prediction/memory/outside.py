"""Memory outside torch's allocator in a prediction: the parts that the run has by its trace."""

from collections.abc import Iterator

from memlab.prediction.memory.host import host_changes
from memlab.simulator.outside.parts import PIECE, OutsidePart, Sizes, parts_of
from memlab.simulator.trace.events import Alloc, of_kinds
from memlab.simulator.trace.trace_format import Trace

RANKS = "other ranks on this GPU"

PAGE_TABLES = "page tables of page-locked memory"

PAGE_BYTES, ENTRY_BYTES = 4096, 8
"""A GPU that reaches page-locked memory of the host has an entry in its own page tables for each page of that memory.
Sizes: of x86-64's pages, and of NVIDIA's page table entries (Linux, nouveau: nvkm/subdev/mmu/vmmgp100.c)."""


def outside_parts(trace: Trace, sizes: Sizes) -> list[OutsidePart]:
    """Return what a rank has outside the allocator, in the order in which it comes. Nothing without memory on the GPU.

    ``sizes``: of the GPU that was measured, whatever GPU is predicted.
    """
    if (first := next((index for index, _ in of_kinds(trace.events, Alloc)), None)) is None:
        return []
    others = [OutsidePart(0, RANKS, "", trace.beside)] if trace.beside else []
    return sorted([*others, *parts_of(trace.appearances, sizes, first), *_page_tables(trace)])


def _page_tables(trace: Trace) -> Iterator[OutsidePart]:
    """Yield the growth of the page tables. The pinned allocator of torch gives nothing back."""
    pieces = 0
    for event, _, pinned in host_changes(trace):
        if (needed := pinned * ENTRY_BYTES // PAGE_BYTES // PIECE) > pieces:
            detail = f"{ENTRY_BYTES} bytes for each page of {PAGE_BYTES}"
            yield OutsidePart(event, PAGE_TABLES, detail, (needed - pieces) * PIECE)
            pieces = needed
