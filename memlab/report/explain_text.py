"""Text of ``memlab explain``: the answer first, then the accounting at the peak, then what each phase adds.

Of a request that failed: what was free, and the last events before it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from rich.console import Console

from memlab.analyse.diff import ChangedKey
from memlab.analyse.explain import accounting
from memlab.analyse.explain.accounting import OUTSIDE_MODULES, ComparedPart, Share, side_by_side, with_same_lines
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.explained_run import ExplainedRun
from memlab.analyse.explain.findings import findings
from memlab.analyse.explain.out_of_memory import LastEvent, LastPart, OutOfMemoryExplained
from memlab.analyse.explain.phases import PhaseRun, changes
from memlab.core.errors import MemlabError, nearest
from memlab.core.record import PREDICTED
from memlab.core.sizes import GIB
from memlab.prediction.memory.ledger import by_kind
from memlab.report import units
from memlab.report.findings_text import show_findings
from memlab.report.text import TextTable, say, show_text_table
from memlab.simulator.trace.trace_format import Site

Node = TypeVar("Node", Share, ComparedPart)

NAMED = 3
"""Kinds that the answer names."""

SMALLEST = 0.005
"""Least share of the whole that has a row of its own; the rest of a part is one row."""


def show_explained(rank: Explained, out: Console, depth: int) -> None:
    """Print the findings of a rank, its memory at the peak, and each phase. ``depth``: levels of the tree."""
    show_findings(findings(rank), out)
    if rank.oom:
        for sentence in failure_sentences(rank, rank.oom):
            say(sentence, out, "bold")
        if (before := what_came_before(rank.oom)).rows:
            show_text_table(before, out)
        show_text_table(accounting_table(rank, depth), out)
    if rank.has_history:
        if rank.oom and rank.oom.last_parts is not None:
            say("The recorded steps came before it:", out)
        first, *others = peak_sentences(rank)
        say(first, out, "bold")
        for sentence in others:
            say(sentence, out)
        if not rank.oom:
            show_text_table(accounting_table(rank, depth), out)
        if rank.phases:
            show_text_table(phases_table(rank), out)
    for note in notes(rank):
        say(note, out)


def peak_sentences(rank: Explained) -> list[str]:
    """Write what a rank uses at its peak, where reserved memory is highest, and why the peak is where it is."""
    return list(filter(None, (answer(rank), when_reserved_is_highest(rank), why_the_peak_is_there(rank))))


def notes(rank: Explained) -> list[str]:
    """Write where the sizes of a prediction come from, and what the tree leaves out."""
    return list(filter(None, (provenance(rank), elsewhere(rank))))


def failure_sentences(rank: Explained, oom: OutOfMemoryExplained) -> list[str]:
    """Write which request failed, and what was held then if the history ends before it."""
    return [out_of_memory_sentence(rank, oom), *([] if oom.last_parts is None else [held_sentence(oom)])]


def accounting_table(rank: Explained, depth: int) -> TextTable:
    """Return the memory of the device as a tree: when a rank ran out of memory, or else at its peak."""
    tree, title = (rank.oom.used, "when it ran out") if rank.oom else (rank.used(rank.peak), "at the peak")
    rows = [
        (units.gib(share.nbytes), f"{100 * share.nbytes / tree.nbytes:.1f}" if tree.nbytes else "-", name)
        for name, share in _rows(tree, depth, tree.nbytes * SMALLEST, lambda share: abs(share.nbytes))
    ]
    return TextTable(("GiB", "%", f"memory {title}, rank {rank.rank}"), rows, numbers=(0, 1))


def run_of_phase(rank: Explained, phase: str) -> PhaseRun:
    """Return the run of a phase with the highest peak. Raises :class:`MemlabError` for a phase that did not run."""
    runs = {run.part.phase: run for run in rank.phases}
    name = phase.replace(" ", "_")  # tables of runs have spaces
    if name not in runs:
        raise MemlabError(f"--at {phase}: no phase of this run. {nearest(name, runs)}")
    return runs[name]


def show_phase(rank: Explained, run: PhaseRun, out: Console, depth: int) -> None:
    """Print the memory of a rank at the start, the peak and the end of a run of a phase, as one tree."""
    say(phase_sentence(run), out, "bold")
    whole = side_by_side([rank.used(moment) for moment in (run.start, run.peak, run.end)])
    head = ("start, GiB", "peak, GiB", "added, GiB", "end, GiB", f"memory in {run.part.phase}, rank {rank.rank}")
    rows = [
        (*map(units.gib, (start, peak)), _signed(peak - start), units.gib(end), name)
        for name, row in _rows(whole, depth, max(whole.sizes) * SMALLEST, lambda row: max(row.sizes))
        for start, peak, end in [row.sizes]
    ]
    show_text_table(TextTable(head, rows, numbers=(0, 1, 2, 3)), out)


def show_difference(before: Explained, after: Explained, out: Console, depth: int) -> None:
    """Print what differs between two ranks, at the peak of each.

    What a part outside the allocator consists of has other names in a prediction than in a measurement, so then the
    parts alone are compared.
    """
    say(difference(before, after), out, "bold")
    held = with_same_lines(before.peak.holdings, after.peak.holdings)
    trees = [
        rank.used(replace(rank.peak, holdings=holdings)) for rank, holdings in zip((before, after), held, strict=True)
    ]
    if before.source != after.source:
        trees = list(map(accounting.without_details_outside, trees))
    whole = side_by_side(trees)
    rows = [
        (*map(units.gib, row.sizes), _signed(row.change), name)
        for name, row in _rows(whole, depth, max(whole.sizes) * SMALLEST, lambda row: row.spread)
    ]
    head = ("first, GiB", "second, GiB", "difference, GiB", "memory at the peak")
    show_text_table(TextTable(head, rows, numbers=(0, 1, 2)), out)


def settings(changes: Sequence[ChangedKey]) -> str:
    """Name the settings and versions in which two runs differ."""
    named = [f"{change.key} {' -> '.join(map(str, change.values))}" for change in changes]
    return f"The runs differ in {'; '.join(named)}." if named else "The runs have the same settings."


def _signed(nbytes: int) -> str:
    return f"{nbytes / GIB:+,.3f}" if nbytes else "="


def difference(before: Explained, after: Explained) -> str:
    """Say how much more or less the second of two ranks uses at its peak, and which kinds differ most."""
    whole = side_by_side([rank.used(rank.peak) for rank in (before, after)])
    kinds = side_by_side([accounting.by_kind(rank.peak.holdings) for rank in (before, after)])
    if not whole.change and not any(part.change for part in kinds.parts):
        return f"Both runs hold the same at their peak: {units.size(whole.sizes[-1])}."
    least = SMALLEST * max(whole.sizes)
    moved = sorted((part for part in kinds.parts if abs(part.change) > least), key=lambda part: -abs(part.change))
    named = ", ".join(_changed(in_a_list(part.name), part.change) for part in moved[:NAMED])
    slack = after.peak.slack.total - before.peak.slack.total
    sizes = " -> ".join(map(units.about, whole.sizes)) + " GiB"
    more = f"{units.size(abs(whole.change))} {'more' if whole.change > 0 else 'less'}" if whole.change else "the same"
    phases = [rank.at.phase or "no phase" for rank in (before, after)]
    phase = "" if phases[0] == phases[1] else f" The peak moved from {phases[0]} to {phases[1]}."
    failed = "".join(
        f" The {name} run ran out of memory; its peak here is that of its recorded history."
        for name, rank in (("first", before), ("second", after))
        if rank.oom and rank.has_history
    )
    return (
        f"The second run uses {more} at its peak ({sizes}): "
        f"{named or _changed('requested memory', kinds.change)}; {_changed('slack', slack)}; "
        f"{_changed('outside the allocator', _outside(after) - _outside(before))}.{phase}{failed}"
    )


def _changed(name: str, change: int) -> str:
    return f"{name} {units.signed_size(change)}" if change else f"{name} the same"


def _outside(rank: Explained) -> int:
    """Return the bytes outside the allocator at the peak."""
    return sum(share.nbytes for share in rank.device.outside(rank.peak.event))


def answer(rank: Explained) -> str:
    """Say how much memory a rank uses at its peak, where that is, and what holds it."""
    kinds = accounting.by_kind(rank.peak.holdings).parts
    named = ", ".join(f"{share.name} {units.size(share.nbytes)}" for share in kinds[:NAMED])
    more = ", ..." if len(kinds) > NAMED else ""
    uses = "would use" if rank.source == PREDICTED else "uses"
    return (
        f"At its peak{in_the_run(*rank.at)} rank {rank.rank} {uses} {units.size(rank.used(rank.peak).nbytes)}: "
        f"{units.size(rank.peak.requested)} that the program requested ({named}{more}), "
        f"{units.size(rank.peak.slack.total)} of slack in the allocator and {units.size(_outside(rank))} outside it."
    )


def elsewhere(rank: Explained) -> str:
    """Say what the allocator held on the other GPUs of a process, which the tree leaves out; empty without others."""
    if not rank.device.elsewhere:
        return ""
    others = _listed((f"cuda:{device}", nbytes) for device, nbytes in sorted(rank.device.elsewhere.items()))
    return f"The tree is of cuda:{rank.device.index}. Elsewhere this process reserves at most: {others}."


def uses_more(run: ExplainedRun) -> str:
    """Name the rank that uses clearly more of its GPU at its peak than the one that is shown; empty without one."""
    used = {rank.rank: rank.used(rank.peak).nbytes for rank in run.ranks}
    most = max(used, key=lambda rank: used[rank])
    if run.shown.oom or used[most] - used[run.shown.rank] <= SMALLEST * used[most]:
        return ""
    return f"Rank {most} uses more of its GPU at its own peak: {units.size(used[most])}. --rank {most} explains it."


def provenance(rank: Explained) -> str:
    """Say where a prediction has its sizes outside the allocator from; empty for a measured run."""
    return f"Sizes {accounting.OUTSIDE} were {rank.device.provenance}." if rank.device.provenance else ""


def when_reserved_is_highest(rank: Explained) -> str:
    """Say where the allocator holds the most, if it holds clearly more than at the peak of allocated memory."""
    if rank.most_reserved is None:
        return ""
    moment, at = rank.most_reserved
    if moment.reserved - rank.peak.reserved <= SMALLEST * moment.reserved:
        return ""
    pointer = f" --at {at.phase} shows that phase." if at.phase else ""
    return (
        f"This is the peak of allocated memory. Reserved memory is highest at another moment{in_the_run(*at)}: "
        f"{units.size(moment.reserved)}, of it {units.size(moment.slack.total)} slack, with "
        f"{units.size(rank.used(moment).nbytes)} of the GPU in use.{pointer}"
    )


def why_the_peak_is_there(rank: Explained) -> str:
    """Say what the phase of the peak adds to what it finds; empty if the peak lies outside all phases."""
    run = next((run for run in rank.phases if run.part.begin <= rank.peak.event < run.part.end), None)
    if run is None:
        return ""
    others = [other for other in rank.phases if other is not run]
    next_highest = max(others, key=lambda other: other.peak.allocated, default=None)
    text = f"Why there: {phase_sentence(run)}"
    if next_highest is not None:
        text += f" The next highest peak, of {next_highest.part.phase}, is {units.size(next_highest.peak.allocated)}."
    return text


def phase_sentence(run: PhaseRun) -> str:
    """Say what a phase finds, adds until its peak, and leaves at its end. Sizes are those of allocated memory."""
    phase, by_added = run.part.phase, changes(run)
    found = _listed((part.name, part.nbytes) for part in accounting.by_kind(run.start.holdings).parts[:NAMED])
    added = [change for change in by_added if change.added > _least(run)][:NAMED]
    stay = _listed((change.kind, change.added) for change in added if change.added - change.stays <= _least(run))
    go = _listed((change.kind, change.added) for change in added if change.stays <= _least(run))
    partly = [
        f"{change.kind} ({units.size(change.added)}), of which {units.size(change.stays)} stay"
        for change in added
        if _least(run) < change.stays < change.added - _least(run)
    ]
    freed = _listed((change.kind, -change.added) for change in reversed(by_added) if -change.added > _least(run))
    whole = [f"{stay}, which stay"] if stay else []
    gone = [f"{go}, which are gone at the end of {phase}"] if go else []
    adds = ", and ".join((*whole, *partly, *gone))
    sentences = [
        f"{phase} begins with {units.size(run.start.allocated)} allocated{f': {found}' if found else ''}.",
        f"Until its peak, {units.size(run.peak.allocated)}, it adds {adds}." if adds else "It adds little.",
        f"By then it has freed {freed}." if freed else "",
        f"It ends with {units.size(run.end.allocated)}.",
    ]
    return " ".join(filter(None, sentences))


def _listed(parts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} ({units.size(nbytes)})" for name, nbytes in parts)


def _least(run: PhaseRun) -> float:
    """Return the least change, in bytes, that a sentence names."""
    return SMALLEST * run.peak.allocated


def _rows(
    whole: Node, depth: int, least: float, size: Callable[[Node], int], indent: str = ""
) -> Iterator[tuple[str, Node]]:
    """Yield the nodes with their names, indented by level. ``size``: decides whether a node reaches ``least``, and gets
    its own row; smaller ones of a level share a row.

    The row of a part that lies outside all modules as a whole would repeat the row above, and is left out.
    """
    yield indent + whole.name, whole
    if [part.name for part in whole.parts] == [accounting.OUTSIDE_MODULES]:
        whole, depth = whole.parts[0], depth - 1
    if depth <= 0:
        return
    shown = [part for part in whole.parts if size(part) >= least or part.name == accounting.UNEXPLAINED]
    for part in shown:
        yield from _rows(part, depth - 1, least, size, f"{indent}  ")
    if rest := [part for part in whole.parts if part not in shown]:
        together = rest[0] if len(rest) == 1 else _together(f"{len(rest)} smaller", rest)
        yield f"{indent}  {together.name}", together


def _together(name: str, parts: Sequence[Node]) -> Node:
    if isinstance(parts[0], ComparedPart):
        return ComparedPart(name, tuple(map(sum, zip(*(part.sizes for part in parts), strict=True))))
    return Share(name, sum(part.nbytes for part in parts))


def phases_table(rank: Explained) -> TextTable:
    """Return a row for each phase: allocated memory at its start, peak and end, and the kinds that it adds."""
    head = (
        *("GiB allocated in", "at start", "peak", "at end", "reserved", "used"),
        *("added until the peak", "of it still there at the end"),
    )
    rows = []
    for run in rank.phases:
        figures = [moment.allocated for moment in (run.start, run.peak, run.end)]
        used = rank.used(run.end).nbytes
        added = [change for change in changes(run) if change.added > _least(run)][:NAMED]
        row = (
            run.part.phase + (f" (of {run.times})" if run.times > 1 else ""),
            *map(units.gib, (*figures, run.end.reserved, used)),
            ", ".join(f"{change.kind} {units.size(change.added)}" for change in added),
            ", ".join(f"{change.kind} {units.size(change.stays)}" for change in added if change.stays > _least(run)),
        )
        rows.append(row)
    return TextTable(head, rows, (1, 2, 3, 4, 5), spare=(7, 1))


HELD = 5
"""Kinds of memory that a sentence names."""


def out_of_memory_sentence(rank: Explained, oom: OutOfMemoryExplained) -> str:
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


def held_sentence(oom: OutOfMemoryExplained) -> str:
    """Say what was held when memory ran out, and how the next run would say more."""
    kinds = [f"{in_a_list(kind)} {units.size(nbytes)}" for kind, nbytes in by_kind(oom.moment.holdings).items()]
    more = ["..."] if len(kinds) > HELD else []
    return (
        f"{units.size(oom.used.nbytes)} of the GPU were in use, {units.size(oom.moment.requested)} of it "
        f"requested by the program ({', '.join([*kinds[:HELD], *more])}). No history was recorded then, so blocks are "
        "named by their owners, and not by the lines that requested them."
    )


def in_a_list(kind: str) -> str:
    """Name a kind of memory in a sentence: what is not recorded, without all that it may be."""
    return kind.partition(":")[0]


def what_came_before(oom: OutOfMemoryExplained) -> TextTable:
    """Return the last events before a failed request; without a recorded history, the last parts of the run."""
    return _last_events(oom.last) if oom.last_parts is None else _last_parts(oom.last_parts)


def _last_events(events: Sequence[LastEvent]) -> TextTable:
    rows = [
        (
            "-" if event.seconds is None else f"{event.seconds:.3f}",
            units.gib(event.nbytes),
            event.action + ("" if event.site is None else f": {described(event.site)}"),
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
