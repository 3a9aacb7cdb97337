"""HTML page of a sweep in one file. It needs no network, and nothing in a run folder can make it run code."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from memlab.analyse.collect import Skipped
from memlab.analyse.run_view import RunView
from memlab.files.disk import write_whole
from memlab.report.html_file import SHARED, html_file
from memlab.report.page.payload import payload

ASSETS = files("memlab.report.page") / "assets"

STYLES = (ASSETS / "vendor" / "uPlot.min.css", SHARED / "common.css", ASSETS / "page.css")

SCRIPTS = (
    *(SHARED / name for name in ("elements.js", "theme.js")),
    *(ASSETS / f"{name}.js" for name in ("base", "sorting", "summary", "details", "diff", "table", "charts", "main")),
)


def write_page(runs: Sequence[RunView], skipped: Sequence[Skipped], title: str, output: Path) -> None:
    """Write the page of these runs, whole or not at all. Raises :class:`WriteError` and :class:`OSError`."""
    text = page(payload(runs, skipped, title))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, text.encode())


def page(values: dict[str, Any]) -> str:
    """Return the text of the file with these values of :func:`payload`."""
    library = (ASSETS / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8")
    return html_file(values, ASSETS / "page.html", STYLES, SCRIPTS, library)
