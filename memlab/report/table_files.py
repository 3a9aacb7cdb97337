"""Table files in CSV, Parquet and Markdown, each written whole or not at all.

Cells of Markdown are escaped, so that a folder's name cannot become markup.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from memlab.files.disk import writing
from memlab.files.spreadsheet import escaped
from memlab.system.terminal import safe


def _as_text(frame: Any) -> Any:
    """Escape names and texts for a spreadsheet; numbers stay numbers."""
    texts = {
        name: column.map(lambda cell: escaped(cell) if isinstance(cell, str) else cell)
        for name, column in frame.items()
        if column.dtype.kind not in "iufb"
    }
    return frame.assign(**texts).rename(columns=escaped)


WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "csv": lambda frame, file: _as_text(frame).to_csv(file, index=False),
    "parquet": lambda frame, file: frame.to_parquet(file, index=False),
    "markdown": lambda frame, file: file.write_text(markdown_table(frame), encoding="utf-8"),
}
"""Format -> function that writes a pandas frame in this format."""


def write_table(
    frame: Any, file: Path, form: str = "csv", opened: Callable[[Path, str], AbstractContextManager[Path]] = writing
) -> None:
    """Write all rows and columns of a pandas frame. Raises :class:`WriteError`, or ImportError without pyarrow.

    ``opened``: :func:`replacing` for a file of memlab's own.
    """
    with opened(file, f".tmp{file.suffix}") as temporary:  # pandas compresses by suffix: .csv.gz
        WRITERS[form](frame, temporary)


IN_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\\": "\\\\", "|": "\\|", "`": "\\`"})
"""Letter that Markdown or HTML would read -> how it is written in a cell."""


def markdown_table(frame: Any) -> str:
    """Write all rows and columns; sizes in bytes, times in seconds, unknown values as empty cells."""
    lines = ["| " + " | ".join(map(_cell, frame.columns)) + " |", "|" + " --- |" * len(frame.columns)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None or value != value:  # NaN
        return ""
    return safe(value).translate(IN_MARKDOWN)
