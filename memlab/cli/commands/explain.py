"""``memlab explain [RUN_FOLDER [RUN_FOLDER]]``: where every byte goes, or where two runs differ."""

import argparse
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

from memlab.cli.commands.run_selection import latest_run, run_folder
from memlab.cli.commands.shared_arguments import output_file, whole
from memlab.core.errors import MemlabError, RecordError
from memlab.core.record import PREDICTED
from memlab.runs.folder import RunFolder
from memlab.system.terminal import safe

REMEDIES = 4
"""Single changes that are predicted for a run of memlab's own training, a few seconds each."""

OF_ONE_RUN = ("memory_viz", "chrome_trace", "at", "remedies")

OF_MEMORY = ("page", "rank", *OF_ONE_RUN)

FILES = ("page", "memory_viz", "chrome_trace")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = (
        "run folder of a prediction, of a run measured with --explain or measure.snapshot=true, or of one that ran out "
        "of memory (default: the latest below outputs/); two folders: what differs"
    )
    parser.add_argument("folders", nargs="*", metavar="RUN_FOLDER", help=help)
    help = "levels of the tree: 3 ends with kinds of memory, 4 with modules, 5 with lines of code (default: 4)"
    parser.add_argument("--depth", type=whole(1), default=4, metavar="N", help=help)
    help = "the rank that is explained, of two runs in each (default: that with the highest peak of allocated memory)"
    parser.add_argument("--rank", type=whole(0), metavar="N", help=help)
    help = "of one run: the memory at the start, at the peak and at the end of a phase, side by side"
    parser.add_argument("--at", metavar="PHASE", help=help)
    help = (
        f"of one run: predict N single changes that can lower the peak (default: {REMEDIES} for memlab's own training, "
        "0 for a command, whose script runs again, on simulated GPUs, for each)"
    )
    parser.add_argument("--remedies", type=whole(0), metavar="N", help=help)
    help = "of one run: also write the fullest rank's memory over time as torch's snapshot, for pytorch.org/memory_viz"
    parser.add_argument("--memory-viz", type=output_file, metavar="FILE", help=help)
    help = (
        "of one run: also write the predicted step (host, streams, links, memory), or the measured memory over time, "
        "as a Chrome trace for ui.perfetto.dev"
    )
    parser.add_argument("--chrome-trace", type=output_file, metavar="FILE", help=help)
    help = (
        "the time of a step by kind of work instead: as measured with measure.profile=true or --profile, next to the "
        "prediction; a second folder names a prediction"
    )
    parser.add_argument("--time", action="store_true", help=help)
    help = "also write a page for a browser, with who holds what at every moment; of two runs: both on one page"
    parser.add_argument("--page", type=output_file, metavar="FILE", help=help)


def run(arguments: argparse.Namespace) -> int:
    from memlab.analyse.explain.explained_run import explain
    from memlab.cli.remedies import print_remedies
    from memlab.report import explain_text
    from memlab.report.screen import WIDTH
    from memlab.report.text import console, say
    from memlab.report.verdict_text import growth_sentence

    folders = [run_folder(folder) for folder in arguments.folders or [latest_run()]]
    _check_options(arguments, len(folders))
    if arguments.time:
        return _show_time(console(pipe_width=WIDTH), *folders)
    try:
        runs = [explain(folder, arguments.rank) for folder in folders]
    except RecordError:
        for folder in folders:
            if growth := folder.read_record().command.get("growth"):  # the meters saw it, without a history
                say(f"- {growth_sentence(growth)}", console())
        raise
    for problem in chain.from_iterable(run.problems for run in runs):
        print(safe(problem), file=sys.stderr)
    if any(getattr(arguments, option) is not None for option in (*FILES, "at")):
        for run in runs:
            run.need_history()
    first, *others = runs
    rank, out = first.shown, console(pipe_width=WIDTH)
    phase = None if arguments.at is None else explain_text.run_of_phase(rank, arguments.at)
    remedies, changes = None, _changes(folders) if others else []
    try:
        if others:
            explain_text.show_difference(rank, others[0].shown, out, arguments.depth)
            say(explain_text.settings(changes), out)
        elif phase:
            explain_text.show_phase(rank, phase, out, arguments.depth)
        else:
            explain_text.show_explained(rank, out, arguments.depth)
            if fuller := explain_text.uses_more(first):
                say(fuller, out)
            if not rank.has_history:
                say(f"The lines of code need a history. {first.advice}", out)
            remedies = print_remedies(first.folder, first.record, arguments.remedies, REMEDIES)
    finally:  # also if the user ends the remedies, or the program that reads this output has ended
        _write_files(arguments, runs, remedies, changes)
    return 0


def _write_files(arguments: argparse.Namespace, runs: list, remedies: Any, changes: list) -> None:
    """Write the files that the options name, and print their sizes.

    ``remedies``: of a single run, if they were predicted. ``changes``: settings and versions in which two runs differ.
    """
    from memlab.analyse.explain.exports import write_chrome_trace, write_memory_viz
    from memlab.analyse.explain.placements import event_times
    from memlab.report import units
    from memlab.report.explain_page import write_explain_page

    run, rank = runs[0], runs[0].shown
    if page := arguments.page:
        write_explain_page(runs, page, remedies, changes)
    if memory_viz := arguments.memory_viz:
        write_memory_viz(memory_viz, rank.history, event_times(rank, run.record))
    if chrome_trace := arguments.chrome_trace:
        write_chrome_trace(chrome_trace, run)
    for file in filter(None, (page, memory_viz, chrome_trace)):
        print(f"{safe(str(file))}: {units.size(file.stat().st_size)}")


def _changes(folders: Sequence[RunFolder]) -> list:
    """Return the settings and versions in which two runs differ."""
    from memlab.analyse.collect import collect
    from memlab.analyse.diff import compare

    comparison = compare([run for folder in folders for run in collect([folder.path]).runs])
    return [*comparison.values, *comparison.environment]


def _check_options(arguments: argparse.Namespace, folders: int) -> None:
    """Refuse an option that would have no effect, or undo another one's. Raises :class:`MemlabError`."""
    if folders > 2:
        raise MemlabError(f"{folders} run folders: memlab explain takes one, or two to compare.")
    reasons = (
        (folders > 1, OF_ONE_RUN, "is about one run: name one run folder"),
        (arguments.time, OF_MEMORY, "is about memory: leave out --time, which shows times instead"),
        (arguments.at is not None, ("remedies",), "is about the run's peak: leave out --at"),
    )
    values = {**vars(arguments), "remedies": arguments.remedies or None}
    for applies, options, reason in reasons:
        if given := [option for option in options if applies and values[option] is not None]:
            raise MemlabError(f"--{given[0].replace('_', '-')} {reason}.")
    targets = [getattr(arguments, option).resolve() for option in FILES if getattr(arguments, option)]
    if twice := next((file for file in targets if targets.count(file) > 1), None):
        raise MemlabError(f"{twice}: two options name this file. Name a file for each.")


def _show_time(out: Any, folder: RunFolder, predicted: RunFolder | None = None) -> int:
    from memlab.analyse.explain.explained import doubts
    from memlab.analyse.explain.time_by_kind import compare
    from memlab.report.time_text import show_time_by_kind

    comparison = compare(folder, predicted)
    of = predicted or folder
    if (record := of.read_record()).source == PREDICTED:
        for doubt in doubts(record):
            print(safe(f"{of}: {doubt}"), file=sys.stderr)
    show_time_by_kind(comparison, out)
    return 0
