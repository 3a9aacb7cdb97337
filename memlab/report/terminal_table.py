"""Tables as wide as the terminal. Text from a run folder is never printed as markup."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from textwrap import fill
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memlab.report.text import SHOWN, fitted, say
from memlab.report.units import counted, gib, number
from memlab.system.terminal import safe

NARROWEST = 24
"""Fewest characters of a name, as long as the table has columns that can be dropped."""

KEYS = 40
"""Fewest characters of a name in the first column, which identifies the rows."""

FLOOR = 10
"""Fewest characters of a text, as long as the first column can be cut."""


def show_table(
    out: Console,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    left: int = 1,
    notes: int = 0,
    common: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table whose first ``left`` and last ``notes`` columns are text. All other columns are numbers, never cut.

    A column of ``common`` that is there with the same value in all of several rows moves to the title. Empty columns
    are left out. If the terminal is too narrow, columns of ``spare`` are dropped, the first one first, and a line names
    them.
    """
    lines = [[safe(cell) for cell in row] for row in rows]
    cells = {name: column for name, *column in zip(columns, *lines, strict=True)}
    empty = [name for name in columns if lines and set(cells[name]) <= {"", "-"}]
    told = [name for name in common if name in cells and name not in empty]
    same = [name for name in told if len(lines) > 1 and len(set(cells[name])) == 1]
    title = "; ".join([title, *(f"{name} {cells[name][0]}" for name in same)])
    kept = [name for name in columns if name not in (*same, *empty)]
    texts = [name for name in (*columns[:left], *columns[len(columns) - notes :]) if name in kept]
    least = {name: _number_width(name, cells[name]) for name in kept}
    least |= {name: _text_width(name, cells[name]) for name in texts[1:]}
    least |= {name: min(least[name], max(KEYS, len(name))) for name in texts[:1]}
    dropped = _drop(least, spare, out)
    widths = _column_widths(least, cells, [name for name in texts if name in least], out)
    table = Table()
    for name, width in widths.items():
        look = {"justify": "left"} if name in texts else {"justify": "right", "no_wrap": True}
        table.add_column(Text(fill(name, width)), width=width, **look)
    for row in zip(*(cells[name] for name in widths), strict=True):
        table.add_row(*(Text(fitted(cell, width)) for width, cell in zip(widths.values(), row, strict=True)))
    out.print(Text(title, "table.title"))  # a title inside the table would be as narrow as the table
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


def _number_width(name: str, cells: Sequence[str]) -> int:
    """Return the fewest characters that a column of numbers needs; its title may break into several lines."""
    return max(map(len, [*name.split(), *cells]), default=1)


def _text_width(name: str, cells: Sequence[str]) -> int:
    """Return the fewest characters that a column of text needs; texts may break, and long words may be cut."""
    words = (word for cell in cells for word in cell.split(" "))
    return max([*map(len, name.split()), *(min(len(word), NARROWEST) for word in words)])


def _room(widths: Mapping[str, int], out: Console) -> int:
    """Return the free characters of a line beside the columns and their frames; negative if these do not fit."""
    return out.width - sum(widths.values()) - 3 * len(widths) - 1


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
        widest = max(cut, key=widths.get)
        widths[widest] = max(1, widths[widest] - 1)
    return widths


SPARE = ("accelerate's", "DeepSpeed's estimate", "active GiB", "$", "tokens/s")
"""Columns that :func:`show_points` drops if the terminal is too narrow, the first one first."""


def show_points(frame: Any, groups: Sequence[str], out: Console) -> None:
    """Print the main columns of :func:`memlab.analyse.table.points_table`: what differs, memory, speed, cost."""
    varied = [group for group in groups if group not in ("seq_len", "batch") and frame[group].nunique(dropna=False) > 1]
    columns = {
        **{group: group for group in varied},
        "batch.micro": "batch",
        "seq_len.tokens": "tokens",
        "status": "status",
        "peak_allocated_bytes_max": "allocated GiB",
        "peak_active_bytes_max": "active GiB",
        "peak_reserved_bytes_max": "reserved GiB",
        "step_seconds": "step s",
        "tokens_per_second": "tokens/s",
        "usd": "$",
        "estimate_deepspeed_bytes": "DeepSpeed's estimate",
        "estimate_accelerate_bytes": "accelerate's",
    }
    shown = {key: title for key, title in columns.items() if key in frame and frame[key].notna().any()}
    ordered = frame.sort_values([*varied, "batch.micro", "seq_len.tokens"])
    rows = [[_cell(key, row[key]) for key in shown] for row in ordered.head(SHOWN).to_dict("records")]
    titles, left = list(shown.values()), len(varied)
    if sum(len(group) + 3 for group in varied) > out.width // 2:
        titles, left = [" ".join(titles[:left]), *titles[left:]], 1  # one column for all options, in the title's order
        rows = [[" ".join(row[: len(varied)]), *row[len(varied) :]] for row in rows]
    notes = 0
    told_apart = [key for key in (*varied, "batch.micro", "seq_len.tokens") if key in frame]
    if "training.command" in frame or frame.duplicated(told_apart).any():  # a script's options may not be known
        folders = [PurePath(path).name for path in ordered.head(SHOWN)["path"]]
        titles, notes = [*titles, "folder"], 1
        rows = [[*row, folder] for row, folder in zip(rows, folders, strict=True)]
    title = f"{counted(len(frame), 'point')}; memory is the largest rank's"
    show_table(out, title, titles, rows, left, notes, common=("batch", "status"), spare=SPARE)
    more = f"{len(frame) - SHOWN:,} more rows and " if len(frame) > SHOWN else ""
    out.print(f"{more}{len(frame.columns) - len(shown)} more columns: --csv, --parquet or --markdown FILE")


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
