"""Markdown tables of pandas frames. Cells are escaped, so that a folder's name cannot become markup."""

from typing import Any

from memlab.system.terminal import safe


def markdown_table(frame: Any) -> str:
    """Write all rows and columns; sizes in bytes, times in seconds, unknown values as empty cells."""
    lines = ["| " + " | ".join(map(_cell, frame.columns)) + " |", "|" + " --- |" * len(frame.columns)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None or value != value:  # NaN
        return ""
    text = safe(value)
    for letter, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\\", "\\\\"), ("|", "\\|"), ("`", "\\`")):
        text = text.replace(letter, written)
    return text
