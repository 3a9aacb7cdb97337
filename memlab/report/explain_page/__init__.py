"""HTML page of explained runs in one file: the answer, memory over time, and who holds what at any moment.

ExplainedRun -> placements.py -> histories.py, packing.py -> payload.py -> html_file.py
"""

from collections.abc import Sequence
from pathlib import Path

from memlab.analyse.diff import ChangedKey
from memlab.analyse.explain.explained_run import ExplainedRun
from memlab.analyse.explain.remedies import Remedies
from memlab.files.disk import write_output
from memlab.report.explain_page.payload import payload
from memlab.report.html_file import html_file

SCRIPTS = ("answer", "history", "tree", "flame", "chart", "segments", "ranks", "main")


def write_explain_page(
    runs: Sequence[ExplainedRun], output: Path, remedies: Remedies | None = None, changes: Sequence[ChangedKey] = ()
) -> None:
    """Write the page of one run, or of two that are compared, whole or not at all.

    ``remedies``: of the one run, if they were predicted. ``changes``: settings and versions in which two runs differ.
    Raises :class:`WriteError` and :class:`OSError`.
    """
    write_output(output, html_file(payload(runs, remedies, changes), __name__, SCRIPTS).encode())
