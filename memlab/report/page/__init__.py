"""HTML page of a sweep in one file. It needs no network, and nothing in a run folder can make it run code."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memlab.analyse.collect import Skipped
from memlab.analyse.run_view import RunView
from memlab.files.disk import write_output
from memlab.report.html_file import html_file
from memlab.report.page.payload import payload


def write_page(
    runs: Sequence[RunView],
    skipped: Sequence[Skipped],
    title: str,
    output: Path,
    write: Callable[[Path, bytes], None] = write_output,
) -> None:
    """Write the page of these runs, whole or not at all. Raises :class:`WriteError` and :class:`OSError`.

    ``write``: :func:`write_whole` for a file of memlab's own.
    """
    write(output, page(payload(runs, skipped, title)).encode())


def page(values: dict[str, Any]) -> str:
    """Return the text of the file with these values of :func:`payload`."""
    scripts = ("base", "sorting", "summary", "details", "diff", "table", "charts", "main")
    return html_file(values, __name__, scripts)
