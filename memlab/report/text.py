"""Terminal output of sentences and commands. Text from a run folder is printed without control characters."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memlab.system.terminal import safe

PIPE_WIDTH = 200
"""Columns of the output if it is not a terminal."""

SHOWN = 60
"""Most rows that are printed; files have all rows."""

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def console(file: Any = None) -> Console:
    """Make a console as wide as the variable COLUMNS says, or as the terminal."""
    stream = file or sys.stdout
    columns = os.environ.get("COLUMNS", "")
    named = int(columns) if columns.isdecimal() else None
    width = named or (None if stream.isatty() and named is None else PIPE_WIDTH)  # nothing fits into 0 columns
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


@dataclass(frozen=True)
class TextTable:
    """Table of texts. ``numbers``: the columns (from 0) that hold numbers, which are aligned to the right. ``spare``:
    the columns that a narrow terminal can do without, the first one first."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[int, ...]
    spare: tuple[int, ...] = ()


def show_text_table(table: TextTable, out: Console) -> None:
    """Print a table. Columns of numbers are never cut; the others are folded, between words if they fit."""
    cells = [[safe(cell) for cell in column] for column in zip(table.head, *table.rows, strict=True)]
    least = {number: _least_width(column, number in table.numbers) for number, column in enumerate(cells)}
    dropped = []
    for number in table.spare:
        if _width(least) > out.width:
            del least[number]
            dropped.append(table.head[number])
    whole = {number: max(map(len, cells[number])) for number in least}
    widths = _shared(out.width - _width(least), least, whole) if _width(least) <= out.width else dict.fromkeys(least)
    printed = Table(box=None, pad_edge=False)
    for number, width in widths.items():
        look = {"justify": "right", "no_wrap": True} if number in table.numbers else {"overflow": "fold"}
        printed.add_column(table.head[number], width=width, **look)
    for row in zip(*(cells[number][1:] for number in least), strict=True):
        printed.add_row(*map(Text, row))
    out.print(printed)
    if dropped:
        say(f"The terminal is too narrow for: {', '.join(dropped)}.", out)


def _least_width(cells: Sequence[str], is_number: bool) -> int:
    """Return the fewest characters that a column needs, so that no number and no word breaks."""
    return max(len(text) for cell in cells for text in ([cell] if is_number else cell.split(" ")))


def _shared(room: int, least: Mapping[int, int], whole: Mapping[int, int]) -> dict[int, int]:
    """Return the width of each column: the least one, and an equal share of ``room``, of which columns that need no
    more than their ``whole`` width leave some to the others."""
    widths = dict(least)
    by_need = sorted(least, key=lambda number: whole[number] - least[number])
    for place, number in enumerate(by_need):
        more = min(whole[number] - least[number], room // (len(by_need) - place))
        widths[number] += more
        room -= more
    return widths


def _width(columns: Mapping[int, int]) -> int:
    """Return the characters of columns with the two between each two of them."""
    return sum(columns.values()) + 2 * (len(columns) - 1)


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
