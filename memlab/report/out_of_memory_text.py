"""Text about a request that failed: what was free, and the last events before it."""

from rich.console import Console

from memlab.analyse.explain.accounting import OUTSIDE_MODULES
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.out_of_memory import OutOfMemory
from memlab.core.record import PREDICTED
from memlab.predict.trace.trace_format import Site
from memlab.report import units
from memlab.report.text import TextTable, show_text_table


def out_of_memory_sentence(rank: Explained, oom: OutOfMemory) -> str:
    """Say which request failed where, what was free, and whether it would have fitted in one piece."""
    step = f"step {oom.part.step}" if oom.part.step else ""
    site = oom.request.site
    line = "" if site.user_line == site.where else site.user_line
    place = ", ".join(filter(None, (oom.part.phase, step, line)))
    verb = "would run" if rank.source == PREDICTED else "ran"
    holes = "no free block"
    if oom.holes:
        count = units.counted(len(oom.holes), "piece")
        holes = f"{units.about(sum(oom.holes))} GiB in {count} of at most {units.about(oom.holes[0])} GiB"
    fits = " In one piece, the free memory would have been enough: the allocator's memory is fragmented."
    return (
        f"Rank {rank.rank} {verb} out of memory ({place}): {units.about(oom.request.nbytes)} GiB requested by "
        f"{described(site)}. Free were {units.about(oom.request.free_on_device)} GiB on the GPU, and in "
        f"torch's allocator {holes}.{fits if oom.is_fragmentation else ''}"
    )


def show_last_events(oom: OutOfMemory, out: Console) -> None:
    """Print the last events before a failed request."""
    show_text_table(last_events_table(oom), out)


def last_events_table(oom: OutOfMemory) -> TextTable:
    rows = [
        (
            "-" if event.seconds is None else f"{event.seconds:.3f}",
            units.gib(event.nbytes),
            event.action.value + ("" if event.site is None else f": {described(event.site)}"),
        )
        for event in oom.last
    ]
    return TextTable(("s before", "GiB", "last events before the failed request"), rows, numbers=(0, 1))


def described(site: Site) -> str:
    """Name the operator, the module and the line of a request."""
    operator = site.op.removeprefix("aten.").partition(".")[0]
    parts = (f"in {site.module}" if site.module else OUTSIDE_MODULES, f"({site.where})" if site.where else "")
    return " ".join(filter(None, (operator or site.kind, *parts)))
