"""Text of ``memlab explain``: the answer first, then the accounting at the peak, then the end of each phase."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memlab.analyse.explain import accounting
from memlab.analyse.explain.accounting import Difference, Share
from memlab.analyse.explain.explained import Explained, fullest
from memlab.core.sizes import GIB
from memlab.report import units
from memlab.report.text import say
from memlab.system.terminal import safe

Node = TypeVar("Node", Share, Difference)

NAMED = 3
"""Kinds that the answer names."""

COLUMNS = 6
"""Kinds with a column of their own in the table of phases."""

SMALLEST = 0.005
"""Least share of the whole that has a row of its own; the rest of a part is one row."""


def show_explained(ranks: Sequence[Explained], out: Console, depth: int) -> None:
    """Print the rank with the highest peak. ``depth``: levels of the tree below the device's memory."""
    rank = fullest(ranks)
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


def show_difference(first: Sequence[Explained], second: Sequence[Explained], out: Console, depth: int) -> None:
    """Print what differs between the fullest ranks of two runs, at the peak of each."""
    before, after = fullest(first), fullest(second)
    trees = [accounting.used(rank.peak, rank.outside, rank.driver) for rank in (before, after)]
    whole = accounting.difference(*trees)
    kinds = accounting.difference(*(accounting.by_kind(rank.peak.holdings) for rank in (before, after)))
    say(_answer_to(whole, kinds, before, after), out, "bold")
    table = Table(box=None, pad_edge=False)
    for column in ("first, GiB", "second, GiB", "difference, GiB"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("memory at the peak", overflow="fold")
    least = max(trees[0].nbytes, trees[1].nbytes) * SMALLEST
    for level, part in _rows(whole, depth, least):
        change = f"{part.nbytes / GIB:+,.3f}" if part.nbytes else "="
        table.add_row(units.gib(part.first), units.gib(part.second), change, Text("  " * level + safe(part.name)))
    out.print(table)


def _answer_to(whole: Difference, kinds: Difference, before: Explained, after: Explained) -> str:
    if not whole.nbytes and not any(part.nbytes for part in kinds.parts):
        return f"Both runs hold the same at their peak: {units.about(whole.second)} GiB."
    direction = "more" if whole.nbytes > 0 else "less"
    named = ", ".join(f"{part.name} {part.nbytes / GIB:+,.2f}" for part in kinds.parts[:NAMED] if part.nbytes)
    sizes = f"{units.about(whole.first)} -> {units.about(whole.second)} GiB"
    moved = "" if before.phase == after.phase else f" The peak moved from {before.phase} to {after.phase}."
    return (
        f"The second run uses {units.about(abs(whole.nbytes))} GiB {direction} at its peak ({sizes}): "
        f"{named or 'the program asked for the same'}; "
        f"slack {(after.peak.slack.total - before.peak.slack.total) / GIB:+,.2f}.{moved}"
    )


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


def _rows(whole: Node, depth: int, least: float, level: int = 0) -> Iterator[tuple[int, Node]]:
    yield level, whole
    if not depth:
        return
    shown = [part for part in whole.parts if abs(part.nbytes) >= least or part.name == accounting.UNEXPLAINED]
    for part in shown:
        yield from _rows(part, depth - 1, least, level + 1)
    if rest := [part for part in whole.parts if part not in shown]:
        yield level + 1, _together(f"{len(rest)} smaller", rest)


def _together(name: str, parts: Sequence[Node]) -> Node:
    if isinstance(parts[0], Difference):
        return Difference(name, sum(part.first for part in parts), sum(part.second for part in parts))
    return Share(name, sum(part.nbytes for part in parts))


def _show_ends(rank: Explained, out: Console) -> None:
    """Print what is allocated at the end of each phase, by kind."""
    kinds = list(
        dict.fromkeys(share.name for _, moment in rank.ends for share in accounting.by_kind(moment.holdings).parts)
    )
    largest = sorted(kinds, key=lambda kind: -max(_of(moment, kind) for _, moment in rank.ends))[:COLUMNS]
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
