"""Rows of the optimizer steps of a command: a file for each rank, one JSON object a line; and combined over ranks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from memlab.core.record_schema import StepRow
from memlab.core.schema import check_of
from memlab.core.sizes import MIB
from memlab.files.regular_file import open_regular, read_regular
from memlab.runs.folder import RunFolder
from memlab.runs.gpus_of_process import on_each_gpu, others_that_count

LARGEST = 256 * MIB
"""Bytes of a file that are read. A step takes about 500."""

TOTALS = ("samples", "tokens", "real_tokens")
"""Figures that add up over the ranks: each rank has its own part of the batch."""

PEAKS = ("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "host_peak_bytes")

HIGHEST = (
    *("seconds", "longest_sample", "padded_length", "largest_micro_batch", "micro_batches"),
    *(*PEAKS, "alloc_retries", "ooms"),
)
"""Figures of which the largest over the ranks counts."""

FULLEST_BY = ("peak_allocated_bytes", "host_peak_bytes")

MOST = 10_000
"""Rows that a record holds, about: 7 MB. The files of the ranks hold every step."""


def read_command(folder: RunFolder, warmup: int = 1) -> tuple[list[dict[str, Any]], dict[int, list[dict[str, Any]]]]:
    """Read the files of a command's ranks, lowest rank first, and rank -> the rows of its steps. Each GPU of a process
    counts as a rank."""
    ranks = folder.read_attached_ranks()
    rows = {rank["rank"]: read_rows(folder.step_rows(rank["rank"])) for rank in ranks}
    processes = [caught_up(rank, rows[rank["rank"]], warmup) for rank in ranks]
    return [entry for process in processes for entry in on_each_gpu(process, others_that_count(process))], rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of one rank. The last line of a killed rank may be cut off: reading ends at a damaged line."""
    rows: list[dict[str, Any]] = []
    with suppress(OSError, ValueError, RecursionError):
        for line in read_regular(path, LARGEST).splitlines():
            row = json.loads(line)
            check_of(StepRow)(row)
            rows.append(row)
    return rows


def count_rows(path: Path) -> int:
    """Count the rows of one rank, which may still be writing them."""
    with suppress(OSError), open_regular(path, LARGEST) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(MIB), b""))
    return 0


def caught_up(rank: dict[str, Any], rows: Sequence[Mapping[str, Any]], warmup: int = 1) -> dict[str, Any]:
    """Complete the file of a rank that was killed with the rows of its steps, the first ``warmup`` to warm up.

    A rank writes its file every few seconds and without the times of its steps, but a row for each step.
    """
    facts = rank["attached"] or {}
    if facts.get("ended") != "running" or not rows:
        return rank
    seconds = [row["seconds"] for row in rows if row.get("seconds") is not None]
    peaks = {key: highest([rank.get(key), *(row.get(key) for row in rows)]) for key in PEAKS}
    at, peak = facts.get("at") or {}, facts.get("peak") or {}
    by = next((key for key in FULLEST_BY if peaks[key] is not None), FULLEST_BY[0])
    fullest = max(rows, key=lambda row: row.get(by) or 0)
    if (fullest.get(by) or 0) > peak.get("bytes", 0):
        batch = {key: fullest.get(key) for key in ("samples", "tokens", "longest_sample")}
        peak = {"step": fullest["step"], "phase": fullest.get("phase"), "where": None, "bytes": fullest[by], **batch}
    if (at.get("step") or 0) <= rows[-1]["step"]:
        at = {"phase": None, "step": rows[-1]["step"] + 1, "where": None}
    return {
        **rank,
        **peaks,
        "warmup_seconds": seconds[:warmup],
        "step_seconds": seconds[warmup:],
        "attached": {**facts, "steps": len(rows), "at": at, "peak": peak},
    }


def highest(values: Iterable[int | None]) -> int | None:
    """Return the highest of the known values; ``None`` if none is known."""
    return max((value for value in values if value is not None), default=None)


def for_record(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Choose the rows that a record holds: all of them up to :data:`MOST`.

    Of more rows: the first two and the last one, evenly spaced ones, the first retry of the allocator, and for each
    figure the row where it is highest.
    """
    if len(rows) <= MOST:
        return list(rows)
    kept = {0, 1, len(rows) - 1, *range(0, len(rows), -(-len(rows) // MOST))}
    for key in HIGHEST:
        values = [row[key] or 0 for row in rows]
        kept.add(values.index(max(values)))
    kept |= set([index for index, row in enumerate(rows) if row["alloc_retries"]][:1])
    return [rows[index] for index in sorted(kept)]


def rows_over_ranks(rows_by_rank: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
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
