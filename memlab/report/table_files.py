"""Table files in CSV, Parquet and Markdown, each written whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memlab.files.disk import replacing
from memlab.files.spreadsheet import escaped
from memlab.report.markdown import markdown_table


def _as_text(frame: Any) -> Any:
    """Escape names and texts for a spreadsheet; numbers stay numbers."""
    texts = {name: column.map(_shown) for name, column in frame.items() if column.dtype.kind not in "iufb"}
    return frame.assign(**texts).rename(columns=escaped)


def _shown(cell: Any) -> Any:
    return escaped(cell) if isinstance(cell, str) else cell


WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "csv": lambda frame, file: _as_text(frame).to_csv(file, index=False),
    "parquet": lambda frame, file: frame.to_parquet(file, index=False),
    "markdown": lambda frame, file: file.write_text(markdown_table(frame), encoding="utf-8"),
}
"""Format -> function that writes a pandas frame in this format."""


def write_table(frame: Any, file: Path, form: str = "csv") -> None:
    """Write all rows and columns of a pandas frame. Raises :class:`WriteError`, or ImportError without pyarrow."""
    with replacing(file, suffix=f".tmp{file.suffix}") as temporary:  # pandas compresses by suffix: .csv.gz
        WRITERS[form](frame, temporary)
