"""Tables as files: CSV, Parquet and Markdown, each written whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memlab.disk import replacing
from memlab.report.markdown import markdown_table

WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "csv": lambda frame, file: frame.to_csv(file, index=False),
    "parquet": lambda frame, file: frame.to_parquet(file, index=False),
    "markdown": lambda frame, file: file.write_text(markdown_table(frame), encoding="utf-8"),
}
"""Format -> what writes a pandas frame in it."""


def write_table(frame: Any, file: Path, form: str = "csv") -> None:
    """Write all rows and columns of a pandas frame. Raises :class:`WriteError`, and ImportError without pyarrow."""
    with replacing(file, suffix=f".tmp{file.suffix}") as temporary:  # pandas compresses for .csv.gz
        WRITERS[form](frame, temporary)
