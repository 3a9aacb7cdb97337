"""Rows of the optimizer steps of a command: a file for each rank, one JSON object a line; and combined over ranks."""

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

LARGEST = 256 * 2**20
"""Bytes of a file that are read. A step takes about 500."""

TOTALS = ("samples", "tokens", "real_tokens")
"""Figures that add up over the ranks: each rank has its own part of the batch."""

HIGHEST = (
    *("seconds", "longest_sample", "padded_length", "largest_micro_batch", "micro_batches"),
    *("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "host_peak_bytes", "alloc_retries", "ooms"),
)
"""Figures of which the largest over the ranks counts."""

FULLEST_BY = ("peak_allocated_bytes", "host_peak_bytes")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of one rank. The last line of a killed rank may be cut off: reading ends at a damaged line."""
    rows: list[dict[str, Any]] = []
    if not path.is_file() or path.is_symlink():
        return rows
    with path.open("rb") as file:
        for line in file.read(LARGEST).splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict):
                break
            rows.append(row)
    return rows


def over_ranks(rows_by_rank: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Combine the rows of each step: sums, largest values, and rank and phase of the highest peak."""
    steps = zip_longest(*([(rank, row) for row in rows] for rank, rows in sorted(rows_by_rank.items())))
    return [_combined([entry for entry in step if entry is not None]) for step in steps]


def _combined(entries: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    rows = [row for _, row in entries]
    row: dict[str, Any] = {"step": rows[0].get("step")}
    row |= {key: _over([one.get(key) for one in rows], sum) for key in TOTALS}
    row |= {key: _over([one.get(key) for one in rows], max) for key in HIGHEST}
    by = next((key for key in FULLEST_BY if row[key] is not None), FULLEST_BY[0])
    rank, fullest = max(entries, key=lambda entry: entry[1].get(by) or 0)
    return row | {"rank": rank, "phase": fullest.get("phase")}


def _over(values: Sequence[Any], function: Any) -> Any:
    """Combine the values of all ranks; ``None`` if one of them does not know its own."""
    return None if None in values else function(values)
