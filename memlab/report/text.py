"""Terminal output: sentences, commands, and tables as wide as the terminal.

Text from a run folder is printed without control characters, and never as markup.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from textwrap import fill
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memlab.report.units import counted, gib, number
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


def show_pointer(folders: Sequence[Any], out: Console) -> None:
    """Print which command explains an out-of-memory, if one was kept, or else a memory history: of several runs, that
    of the first."""
    kept = [folder for folder in folders if folder.ranks_out_of_memory()]
    recorded = [folder for folder in folders if folder.ranks_with_history()]
    if kept:
        of_several = f" ({len(kept)} runs; this is the first)" if len(kept) > 1 else ""
        say(f"What held the memory when it ran out{of_several}: memlab explain {kept[0]}", out)
    elif recorded:
        say(f"Where every byte goes: memlab explain {recorded[0]}", out)


NARROWEST = 24
"""Fewest characters of a name, as long as the table has columns that can be dropped."""

KEYS = 40
"""Fewest characters of a name in the first column, which identifies the rows."""

GAP = 2
"""Characters between two columns."""

FLOOR = 10
"""Fewest characters of a text, as long as the first column can be cut."""


@dataclass(frozen=True)
class TextTable:
    """Table of texts. ``numbers``: the columns (from 0) that hold numbers, which are aligned to the right and never
    cut. ``spare``: the columns that a narrow terminal can do without, the first one first."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[int, ...]
    spare: tuple[int, ...] = ()


def show_text_table(table: TextTable, out: Console) -> None:
    """Print a table with all its columns, as far as the terminal has room for them."""
    columns = zip(table.head, *([safe(cell) for cell in row] for row in table.rows), strict=True)
    cells = {name: column for name, *column in columns}
    texts = [name for number, name in enumerate(table.head) if number not in table.numbers]
    _show(cells, texts, [table.head[number] for number in table.spare], out)


def show_table(
    out: Console,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    left: int = 1,
    notes: int = 0,
    common: Sequence[str] = (),
    spare: Sequence[str] = (),
    always: Sequence[str] = (),
) -> None:
    """Print a table whose first ``left`` and last ``notes`` columns are text. All other columns are numbers, never cut.

    A column of ``common`` that is there with the same value in all of several rows moves to the title. Empty columns
    are left out, except those of ``always``. If the terminal is too narrow, columns of ``spare`` are dropped, the first
    one first, and a line names them.
    """
    lines = [[safe(cell) for cell in row] for row in rows]
    cells = {name: column for name, *column in zip(columns, *lines, strict=True)}
    empty = [name for name in columns if lines and name not in always and set(cells[name]) <= {"", "-"}]
    told = [name for name in common if name in cells and name not in empty]
    same = [name for name in told if len(lines) > 1 and len(set(cells[name])) == 1]
    out.print(Text("; ".join([title, *(f"{name} {cells[name][0]}" for name in same)]), "table.title"))
    kept = {name: cells[name] for name in columns if name not in (*same, *empty)}
    texts = [name for name in (*columns[:left], *columns[len(columns) - notes :]) if name in kept]
    _show(kept, texts, spare, out)


def show_items(
    out: Console, title: str, items: Iterable[Any], cells: Mapping[str, Callable[[Any], Any]], **layout: Any
) -> None:
    """Print a table with a row for each item. ``cells``: column -> function that writes its cell of an item;
    ``layout``: as for :func:`show_table`."""
    show_table(out, title, list(cells), [[write(item) for write in cells.values()] for item in items], **layout)


def _show(cells: Mapping[str, Sequence[str]], texts: Sequence[str], spare: Sequence[str], out: Console) -> None:
    """Print the columns ``cells``, of which ``texts`` are text and the others numbers. Titles may break into several
    lines."""
    least = {name: max(map(len, [*name.split(), *column]), default=1) for name, column in cells.items()}
    least |= {name: _text_width(name, cells[name]) for name in texts[1:]}
    least |= {name: min(least[name], max(KEYS, len(name))) for name in texts[:1]}
    dropped = _drop(least, spare, out)
    widths = _column_widths(least, cells, [name for name in texts if name in least], out)
    table = Table(box=None, pad_edge=False)
    for name, width in widths.items():
        look = {"justify": "left"} if name in texts else {"justify": "right", "no_wrap": True}
        table.add_column(Text(fill(name, width)), width=width, **look)
    for row in zip(*(cells[name] for name in widths), strict=True):
        table.add_row(*(Text(fitted(cell, width)) for width, cell in zip(widths.values(), row, strict=True)))
    out.print(table)
    if dropped:
        say(f"The terminal is too narrow for: {', '.join(reversed(dropped))}.", out)


def _drop(least: dict[str, int], spare: Sequence[str], out: Console) -> list[str]:
    """Remove columns of ``spare`` from ``least`` until the others fit. Returns the names of the removed columns."""
    dropped = []
    for name in spare:
        if _room(least, out) < 0 and name in least:
            del least[name]
            dropped.append(name)
    return dropped


def _text_width(name: str, cells: Sequence[str]) -> int:
    """Return the fewest characters that a column of text needs; texts may break, and long words may be cut."""
    words = (word for cell in cells for word in cell.split(" "))
    return max([*map(len, name.split()), *(min(len(word), NARROWEST) for word in words)])


def _room(widths: Mapping[str, int], out: Console) -> int:
    """Return the characters of a line that the columns and their gaps leave free; negative if these do not fit."""
    return out.width - sum(widths.values()) - GAP * (len(widths) - 1)


def _column_widths(
    least: Mapping[str, int], cells: Mapping[str, Sequence[str]], texts: Sequence[str], out: Console
) -> dict[str, int]:
    """Compute the width of each column.

    Free characters go to the first column, then in equal shares to the other text columns, of which the short ones
    leave some to the long ones. Lacking characters are taken from the widest text column, and from the first column
    last.
    """
    widths, room = dict(least), _room(least, out)
    lacking = {name: max(map(len, [name, *cells[name]])) - widths[name] for name in least}
    others = sorted(texts[1:], key=lacking.__getitem__)
    shares = [1, *range(len(others), 0, -1), *([1] * len(least))]
    numbers = [name for name in least if name not in texts]
    for name, share in zip([*texts[:1], *others, *numbers], shares, strict=False):
        more = max(0, min(room // share, lacking[name]))
        widths[name] += more
        room -= more
    for _ in range(-room):
        cut = [name for name in texts[1:] if widths[name] > FLOOR] or texts
        widest = max(cut, key=widths.__getitem__)
        widths[widest] = max(1, widths[widest] - 1)
    return widths


def show_frame(frame: Any, out: Console) -> None:
    """Print the first rows of any frame, without its empty columns, sizes in GiB. A run has the name of its folder: ids
    of training commands say little."""
    if "path" in frame:
        folders = [PurePath(path).name for path in frame["path"]]
        frame = frame.assign(run_id=folders).rename(columns={"run_id": "folder"})
    frame = frame.dropna(axis="columns", how="all")
    titles = [column.removesuffix("_bytes") + " GiB" if column.endswith("_bytes") else column for column in frame]
    rows = [[_cell(key, value) for key, value in row.items()] for row in frame.head(SHOWN).to_dict("records")]
    show_table(out, counted(len(frame), "row"), titles, rows, left=2, spare=("path", *titles[:2:-1]))


def _cell(key: str, value: Any) -> str:
    if value is None or value != value:  # NaN
        return "-"
    if "_bytes" in key:
        return gib(value)
    if not isinstance(value, float):
        return f"{value}"
    return f"{value:.0f}" if value.is_integer() else number(value)  # pandas keeps a column with gaps as floats
