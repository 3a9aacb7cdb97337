"""Text of ``memlab explain``: the answer first, then the accounting at the peak, then the end of each phase."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memlab.analyse.explain import accounting
from memlab.analyse.explain.accounting import Share
from memlab.analyse.explain.explained import Explained
from memlab.report import units
from memlab.report.text import say
from memlab.system.terminal import safe

NAMED = 3
"""Kinds that the answer names."""

COLUMNS = 6
"""Kinds with a column of their own in the table of phases."""

SMALLEST = 0.005
"""Least share of the whole that has a row of its own; the rest of a part is one row."""


def show_explained(ranks: Sequence[Explained], out: Console, depth: int) -> None:
    """Print the rank with the highest peak. ``depth``: levels of the tree below the device's memory."""
    rank = max(ranks, key=lambda each: each.peak.allocated)
    tree = accounting.used(rank.peak, rank.outside, rank.driver)
    say(_answer(rank, tree), out, "bold")
    table = Table(box=None, pad_edge=False)
    for column in ("GiB", "%"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(f"memory at the peak, rank {rank.rank}", overflow="fold")
    for level, share in _rows(tree, depth, tree.nbytes * SMALLEST):
        share_of_all = f"{100 * share.nbytes / tree.nbytes:.1f}" if tree.nbytes else "-"
        table.add_row(units.gib(share.nbytes), share_of_all, Text("  " * level + safe(share.name)))
    out.print(table)
    _show_ends(rank, out)


def _answer(rank: Explained, tree: Share) -> str:
    kinds = accounting.by_kind(rank.peak.holdings).parts
    named = ", ".join(f"{share.name} {units.about(share.nbytes)}" for share in kinds[:NAMED])
    place = ", ".join(filter(None, (rank.phase, f"step {rank.step}" if rank.step else "", rank.where)))
    uses = "would use" if rank.driver is None else "uses"
    return (
        f"At its peak ({place}) rank {rank.rank} {uses} {units.about(tree.nbytes)} GiB: "
        f"{units.about(rank.peak.requested)} GiB that the program asked for ({named}, ...), "
        f"{units.about(rank.peak.slack.total)} GiB of slack in the allocator and "
        f"{units.about(sum(share.nbytes for share in rank.outside))} GiB outside it."
    )


def _rows(share: Share, depth: int, least: float, level: int = 0) -> Iterator[tuple[int, Share]]:
    yield level, share
    if not depth:
        return
    shown = [part for part in share.parts if abs(part.nbytes) >= least or part.name == accounting.UNEXPLAINED]
    for part in shown:
        yield from _rows(part, depth - 1, least, level + 1)
    rest = [part for part in share.parts if part not in shown]
    if rest:
        yield level + 1, Share(f"{len(rest)} smaller", sum(part.nbytes for part in rest))


def _show_ends(rank: Explained, out: Console) -> None:
    """Print what is allocated at the end of each phase, by kind."""
    kinds = list(
        dict.fromkeys(share.name for _, moment in rank.ends for share in accounting.by_kind(moment.holdings).parts)
    )
    largest = sorted(kinds, key=lambda kind: -max(_of(moment, kind) for _, moment in rank.ends))[:6]
    table = Table(box=None, pad_edge=False)
    table.add_column("at the end of")
    for column in ("allocated", "reserved", *largest):
        table.add_column(column, justify="right")
    for phase, moment in rank.ends:
        figures = (moment.allocated, moment.reserved, *(_of(moment, kind) for kind in largest))
        table.add_row(safe(phase), *map(units.gib, figures))
    out.print(table)


def _of(moment, kind: str) -> int:
    return sum(share.nbytes for share in accounting.by_kind(moment.holdings).parts if share.name == kind)
