"""Remedies behind the explanation of a run: composed and predicted, with their progress, and printed."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from memlab.analyse.explain.remedies import Remedies, remedies
from memlab.cli.single_changes import changes_of_record
from memlab.core.errors import MemlabError
from memlab.core.record import Record
from memlab.planner.changed_runs import ChangedCommands, ChangedPlans, ChangedRuns, Progress
from memlab.report.plan_text import PlanProgress
from memlab.report.remedies_text import show_remedies
from memlab.report.text import console, say
from memlab.runs.folder import RunFolder
from memlab.system.deadman import guarded


def print_remedies(folder: RunFolder, record: Record, most: int | None, usual: int) -> Remedies | None:
    """Predict ``most`` changes of a run, print what they save and return them; ``None``: ``usual`` for memlab's own
    training, and none for a command. That they cannot be predicted is no error: the explanation is complete without
    them."""
    out = console()
    if most is None and record.command:
        say(f"Remedies: --remedies {usual} predicts {usual} changes of the command that can lower this peak.", out)
        return None
    if most == 0:
        return None
    try:
        with PlanProgress(console(sys.stderr)) as progress, _changed_runs(folder, record, progress.update) as runs:
            found = remedies(record, runs, usual if most is None else most)
    except MemlabError as error:
        say(f"No remedies: {error}", out)
        return None
    show_remedies(found, out)
    return found


@contextmanager
def _changed_runs(folder: RunFolder, record: Record, on_progress: Progress) -> Iterator[ChangedRuns]:
    if not record.command:
        yield ChangedPlans(*changes_of_record(record), on_progress)
        return
    with guarded(os.environ) as environ:
        yield ChangedCommands(folder, record, environ, on_progress)
