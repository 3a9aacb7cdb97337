"""Text about a request that failed: what was free, and the last events before it."""

from collections.abc import Sequence

from rich.console import Console

from memlab.analyse.explain.accounting import OUTSIDE_MODULES
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.out_of_memory import LastEvent, LastPart, OutOfMemory
from memlab.core.record import PREDICTED
from memlab.predict.memory.ledger import by_kind
from memlab.predict.trace.trace_format import Site
from memlab.report import units
from memlab.report.terminal_table import TextTable
from memlab.report.text import say
from memlab.runs.folder import RunFolder

NAMED = 5
"""Kinds of memory that a sentence names."""


def out_of_memory_sentence(rank: Explained, oom: OutOfMemory) -> str:
    """Say which request failed where, what was free, and whether it would have fitted in one piece."""
    site = oom.request.site
    line = "" if site.user_line == site.where else site.user_line
    place = in_the_run(oom.part.phase, oom.part.step, line)
    verb = "would run" if rank.source == PREDICTED else "ran"
    holes = "no free block"
    if oom.holes:
        count = units.counted(len(oom.holes), "piece")
        holes = f"{units.size(sum(oom.holes))} free in {count} of at most {units.size(oom.holes[0])}"
    fits = " In one piece, the free memory would have been enough: the allocator's memory is fragmented."
    often = f" It ran out of memory {oom.times} times; this is the last one." if oom.times > 1 else ""
    return (
        f"Rank {rank.rank} {verb} out of memory{place}: {units.size(oom.request.nbytes)} requested by "
        f"{described(site)}. torch's allocator could take {units.size(oom.request.free_on_device)} more "
        f"from the GPU, and had {holes}.{fits if oom.is_fragmentation else ''}{often}"
        f"{' The run went on after it.' if oom.goes_on else ''}"
    )


def in_the_run(phase: str, step: int | None, line: str | None) -> str:
    """Write a place in the run, as far as it is known: `` (forward, step 3, train.py:9)``."""
    known = ", ".join(filter(None, (phase, f"step {step}" if step else "", line)))
    return f" ({known})" if known else ""


def held_sentence(oom: OutOfMemory) -> str:
    """Say what was held when memory ran out, and how the next run would say more."""
    kinds = [f"{in_a_list(kind)} {units.size(nbytes)}" for kind, nbytes in by_kind(oom.moment.holdings).items()]
    more = ["..."] if len(kinds) > NAMED else []
    return (
        f"{units.size(oom.used.nbytes)} of the GPU were in use, {units.size(oom.moment.requested)} of it "
        f"requested by the program ({', '.join([*kinds[:NAMED], *more])}). No history was recorded then, so blocks are "
        "named by their owners, and not by the lines that requested them."
    )


def in_a_list(kind: str) -> str:
    """Name a kind of memory in a sentence: what is not recorded, without all that it may be."""
    return kind.partition(":")[0]


def show_pointer(folders: Sequence[RunFolder], out: Console) -> None:
    """Print which command explains an out-of-memory, if one was kept, or else a memory history: of several runs, that
    of the first."""
    kept = [folder for folder in folders if folder.ranks_out_of_memory()]
    recorded = [folder for folder in folders if folder.ranks_with_history()]
    if kept:
        of_several = f" ({len(kept)} runs; this is the first)" if len(kept) > 1 else ""
        say(f"What held the memory when it ran out{of_several}: memlab explain {kept[0]}", out)
    elif recorded:
        say(f"Where every byte goes: memlab explain {recorded[0]}", out)


def what_came_before(oom: OutOfMemory) -> TextTable:
    """Return the last events before a failed request; without a recorded history, the last parts of the run."""
    return _last_events(oom.last) if oom.last_parts is None else _last_parts(oom.last_parts)


def _last_events(events: Sequence[LastEvent]) -> TextTable:
    rows = [
        (
            "-" if event.seconds is None else f"{event.seconds:.3f}",
            units.gib(event.nbytes),
            event.action.value + ("" if event.site is None else f": {described(event.site)}"),
        )
        for event in events
    ]
    return TextTable(("s before", "GiB", "last events before the failed request"), rows, numbers=(0, 1))


def _last_parts(parts: Sequence[LastPart]) -> TextTable:
    rows = [
        (
            f"{part.seconds:.3f}",
            *map(units.gib, (part.allocated, part.peak_allocated, part.peak_reserved)),
            f"{part.phase}{f', step {part.step}' if part.step else ''}",
        )
        for part in parts
    ]
    head = ("s before", "GiB allocated at its end", "peak", "peak reserved", "last parts of the run before the failure")
    return TextTable(head, rows, numbers=(0, 1, 2, 3))


def described(site: Site) -> str:
    """Name the operator, the module and the line of a request. Without a recorded history, the function or the node of
    autograd stands for the operator, and the module is known in forward alone."""
    operator = site.op.removeprefix("aten.").partition(".")[0]
    if not operator and ":" not in site.where:
        return " ".join(filter(None, (site.where or site.kind, f"in {site.module}" if site.module else "")))
    parts = (f"in {site.module}" if site.module else OUTSIDE_MODULES, f"({site.where})" if site.where else "")
    return " ".join(filter(None, (operator or site.function or site.kind, *parts)))
