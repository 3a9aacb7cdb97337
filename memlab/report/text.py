"""Tables and lines in a terminal. What comes from a run folder is printed as text: no markup, no control characters."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memlab.report.units import gib, number
from memlab.terminal import safe

PIPE_WIDTH = 200
"""Columns where the output is no terminal and so tells no width."""

SHOWN = 60
"""Rows that are printed; the files have them all."""


def console(file: Any = None) -> Console:
    stream = file or sys.stdout
    return Console(file=file, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> Table:
    """A table whose first ``left`` columns are text and the others figures."""
    table = Table(title=Text(title), title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    return table


def show_skipped(skipped: Iterable[Any], out: Console) -> None:
    """A line for each place that could not be used."""
    for place in skipped:
        out.print(f"skipped {safe(place.path)}: {safe(place.reason)}", soft_wrap=True)


def show_incomplete(runs: Iterable[Any], out: Console) -> None:
    """A line for each run that calls itself ok and lacks something."""
    for run in runs:
        if run.incomplete:
            out.print(f"incomplete {safe(run.run_id)}: {safe('; '.join(run.incomplete))}", soft_wrap=True)


def show_points(frame: Any, groups: Sequence[str], out: Console) -> None:
    """The main columns of :func:`memlab.analyse.table.points_table`: what differs, memory, speed, cost."""
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
    out.print(grid(f"{len(frame):,} points; memory is the largest rank's", list(shown.values()), rows, len(varied)))
    more = f"{len(frame) - SHOWN:,} more rows and " if len(frame) > SHOWN else ""
    out.print(f"{more}{len(frame.columns) - len(shown)} more columns: --csv, --parquet or --markdown FILE")


def show_frame(frame: Any, out: Console) -> None:
    """The first rows of any frame, without its empty columns, bytes in GiB."""
    frame = frame.dropna(axis="columns", how="all")
    titles = [column.removesuffix("_bytes") + " GiB" if column.endswith("_bytes") else column for column in frame]
    rows = [[_cell(key, value) for key, value in row.items()] for row in frame.head(SHOWN).to_dict("records")]
    out.print(grid(f"{len(frame):,} rows", titles, rows))


def _cell(key: str, value: Any) -> str:
    if value is None or value != value:  # NaN
        return "-"
    if "_bytes" in key:
        return gib(value)
    return number(value) if isinstance(value, float) and not value.is_integer() else f"{value}"
