"""HTML page of a sweep in one file. It needs no network, and nothing in a run folder can make it run code."""

from collections.abc import Sequence
from pathlib import Path

from memlab.analyse.collect import Skipped
from memlab.analyse.run_view import RunView
from memlab.files.disk import write_whole
from memlab.report.page.html import page
from memlab.report.page.payload import payload


def write_page(runs: Sequence[RunView], skipped: Sequence[Skipped], title: str, output: Path) -> None:
    """Write the page of these runs, whole or not at all. Raises :class:`WriteError` and :class:`OSError`."""
    text = page(payload(runs, skipped, title))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, text.encode())
