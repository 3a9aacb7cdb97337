"""Files that ``memlab explain`` writes beside what it prints."""

import argparse
from collections.abc import Sequence

from memlab.analyse.diff import ChangedKey
from memlab.analyse.explain.explained_run import ExplainedRun
from memlab.analyse.explain.exports import write_chrome_trace, write_memory_viz
from memlab.analyse.explain.placements import event_times
from memlab.analyse.explain.remedies import Remedies
from memlab.report import units
from memlab.report.explain_page import write_explain_page
from memlab.system.terminal import safe


def write_files(
    arguments: argparse.Namespace,
    runs: Sequence[ExplainedRun],
    remedies: Remedies | None,
    changes: Sequence[ChangedKey],
) -> None:
    """Write the files that the options name, and print their sizes.

    ``remedies``: of a single run, if they were predicted. ``changes``: settings and versions in which two runs differ.
    """
    run, rank = runs[0], runs[0].shown
    if page := arguments.page:
        write_explain_page(runs, page, remedies, changes)
    if memory_viz := arguments.memory_viz:
        write_memory_viz(memory_viz, rank.history, event_times(rank, run.record))
    if chrome_trace := arguments.chrome_trace:
        write_chrome_trace(chrome_trace, run)
    for file in filter(None, (page, memory_viz, chrome_trace)):
        print(f"{safe(str(file))}: {units.size(file.stat().st_size)}")
