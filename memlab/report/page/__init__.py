"""One HTML file that tells a sweep: it opens without a network, and nothing in a run folder can make it run code."""

from collections.abc import Sequence
from pathlib import Path

from memlab.analyse.collect import Skipped
from memlab.analyse.run import Run
from memlab.errors import MemlabError
from memlab.report.page.html import page
from memlab.report.page.payload import payload


def write_page(runs: Sequence[Run], skipped: Sequence[Skipped], title: str, output: Path) -> None:
    """Write the page of these runs. Raises :class:`MemlabError` where ``output`` cannot be written."""
    text = page(payload(runs, skipped, title))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MemlabError(f"Cannot write {output}: {error.strerror or error}.") from error
