"""Terminal output of sentences and commands. Text from a run folder is printed without control characters."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from memlab.system.terminal import safe

PIPE_WIDTH = 200
"""Columns of the output if it is not a terminal."""

SHOWN = 60
"""Most rows that are printed; files have all rows."""

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def console(file: Any = None, pipe_width: int = PIPE_WIDTH) -> Console:
    """Make a console as wide as the variable COLUMNS says, or as the terminal; ``pipe_width`` if it is none."""
    stream = file or sys.stdout
    columns = os.environ.get("COLUMNS", "")
    named = int(columns) if columns.isdecimal() else None
    width = named or (None if stream.isatty() and named is None else pipe_width)  # nothing fits into 0 columns
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)


def fitted(text: str, width: int) -> str:
    """Cut every word of ``text`` that is longer than ``width`` in its middle: both ends of a name matter."""
    return " ".join(_cut(word, width) for word in text.split(" "))


def _cut(word: str, width: int) -> str:
    if len(word) <= width:
        return word
    head = width // 2
    return word[:head] + ELLIPSIS + word[len(word) - (width - head - 1) :]


def say(text: str, out: Console, style: str = "", indent: int = 0) -> None:
    """Print a sentence. Lines break between words, never within a name."""
    width = out.width - indent
    for line in Text(fitted(safe(text), width), style).wrap(out, width):
        line.rstrip()
        line.pad_left(indent)
        out.print(line)


def show_command(words: Sequence[str], out: Console) -> None:
    """Print a shell command to be copied, with a backslash at the end of each line but the last."""
    lines = [""]
    for word in map(safe, words):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > out.width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def show_skipped(skipped: Iterable[Any], out: Console) -> None:
    """Print a line for each path that was skipped."""
    for place in skipped:
        out.print(f"skipped {safe(place.path)}: {safe(place.reason)}", soft_wrap=True)


def show_incomplete(runs: Iterable[Any], out: Console) -> None:
    """Print a line for each run with status ok that is incomplete."""
    for run in runs:
        if run.incomplete:
            out.print(f"incomplete {safe(run.run_id)}: {safe('; '.join(run.incomplete))}", soft_wrap=True)
