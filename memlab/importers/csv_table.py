"""Import of CSV files as records: a line for each point or rank, with a map from record keys to columns."""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from memlab.core.config import GROUPS, Config
from memlab.core.errors import MemlabError, RecordError, nearest
from memlab.core.plan import config_hash, run_id
from memlab.core.record import CUDA_ALLOCATOR, ISOLATIONS, STATUSES, RankResult, Record
from memlab.core.schema import shown
from memlab.core.sizes import GIB, MIB
from memlab.core.summary import BYTES, slowest, summarise
from memlab.files.conf_files import config_of
from memlab.files.disk import explained
from memlab.files.spreadsheet import unescaped
from memlab.runs.decode import decode_record
from memlab.runs.folder import RunFolder
from memlab.system.environment import hashed


def imported_record(
    config: Config, choices: dict[str, str], environment: dict[str, Any], ranks: list[dict[str, Any]], status: str
) -> Record:
    """Make a measured record whose ranks have the mean step time instead of the time of every step."""
    steps = config.measure.steps
    return Record(
        run_id=run_id(config),
        source="measured",
        status=status,
        reason=None if status == "ok" else f"{status} in {environment['imported_from']}",
        config=config,
        choices=choices,
        fingerprint=hashed([config_hash(config), environment]),
        environment=environment,
        ranks=ranks,
        steps={
            "warmup": config.measure.warmup,
            "measured": steps,
            "averaged_over": steps,
            "repeats": 1,
            "seconds": slowest(ranks, "step_seconds"),
        },
        summary=summarise(config, ranks, None),
    )


def imported_rank(rank: int, **figures: Any) -> dict[str, Any]:
    """Make the figures of a rank of a measured record. ``figures``: as in :class:`RankResult`."""
    return RankResult(rank=rank, device=f"cuda:{rank}", memory_source=CUDA_ALLOCATOR, **figures).to_json()


def write_records(records: Iterable[Record], output: Path) -> list[Path]:
    """Write a run folder in ``output`` for each record.

    Raises :class:`MemlabError` instead of replacing a run from another source, and :class:`RecordError`, before the
    folder is made, for a record that could not be read again.
    """
    written = []
    for record in records:
        decode_record(record.to_json(), f"{record.environment['imported_from']}, {record.run_id}")
        folder = RunFolder(output / record.run_id)
        if folder.path.exists() and _origin(folder) != record.environment["imported_from"]:
            raise MemlabError(f"{folder}: already there, from another source. Choose another --output.")
        folder.claim()
        folder.finish(record)
        written.append(folder.path)
    return written


def _origin(folder: RunFolder) -> str | None:
    try:
        return folder.read_record().environment.get("imported_from")
    except RecordError:
        return None


UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": MIB, "GiB": GIB}
"""Units of a column of bytes, in bytes."""

LONGEST = 1000
"""Most characters of a cell."""

RECORD_KEYS = (*BYTES, "step_seconds", "iterations_per_second", "parameters", "rank", "status", "isolation")
"""Record keys that a column can hold. A column can also hold a dotted configuration key, or the option of a group."""


@dataclass(frozen=True)
class Column:
    """The column that holds a record key: its name and, for bytes, the factor of its unit."""

    key: str
    name: str
    factor: int = 1


def parse_map(words: Iterable[str]) -> list[Column]:
    """Parse words ``KEY=COLUMN`` or ``KEY=COLUMN:UNIT``. Raises :class:`MemlabError` for unknown keys and units."""
    columns = []
    for word in words:
        key, equals, name = word.partition("=")
        if not equals or not name:
            raise MemlabError(f"--map {word}: write KEY=COLUMN or KEY=COLUMN:UNIT.")
        if key not in RECORD_KEYS and key not in GROUPS and key.partition(".")[0] not in GROUPS:
            raise MemlabError(f"--map {word}: no record key '{key}'. {nearest(key, [*RECORD_KEYS, *GROUPS])}")
        name, _, unit = name.rpartition(":") if key in BYTES and ":" in name else (name, "", "B")
        if unit not in UNITS:
            raise MemlabError(f"--map {word}: no unit '{unit}'. {nearest(unit, UNITS)}")
        columns.append(Column(key, name, UNITS[unit]))
    return columns


def csv_records(file: Path, columns: list[Column], fixed: dict[str, str]) -> Iterator[Record]:
    """Yield a record for each point of the table. ``fixed``: group options and dotted values of all lines.

    Lines with the same configuration are ranks of one point, which is ``ok`` if all lines are, and ``shared`` if any
    line is. Raises :class:`MemlabError` with the faulty line.
    """
    points: dict[str, tuple[Config, dict[str, str], list[dict[str, Any]]]] = {}
    for number, line in enumerate(_lines(file, columns), 2):
        try:
            values = {column.key: _value(column, cell) for column in columns if (cell := _cell(column, line)) != ""}
            known = {**fixed, **values}
            choices = {key: str(value) for key, value in known.items() if key in GROUPS}
            config = config_of(choices, {key: value for key, value in known.items() if "." in key})
            _, _, lines = points.setdefault(config_hash(config), (config, choices, []))
            lines.append({"isolation": "fresh", **values, "status": _status(values)})
        except (ValueError, OverflowError, MemlabError) as error:
            raise MemlabError(f"{file}:{number}: {error}") from error
    for config, choices, lines in points.values():
        ok = [values for values in lines if values["status"] == "ok"]
        ranks = [_rank(values, position) for position, values in enumerate(ok)]
        status = next((values["status"] for values in lines if values["status"] != "ok"), "ok")
        record = imported_record(config, choices, {"imported_from": file.name}, ranks, status)
        is_shared = any(values["isolation"] == "shared" for values in lines)
        yield replace(record, isolation="shared" if is_shared else "fresh")


def _lines(file: Path, columns: list[Column]) -> list[dict[str, str]]:
    try:
        with explained(MemlabError, file), file.open(encoding="utf-8", newline="") as text:
            rows = csv.DictReader(text, restval="")
            rows.fieldnames = [unescaped(name) for name in rows.fieldnames or ()]
            lines = list(rows)
    except csv.Error as error:
        raise MemlabError(f"{file}: not a CSV file ({error}).") from error
    if missing := [column.name for column in columns if not lines or column.name not in lines[0]]:
        found = [name for name in lines[0] if name] if lines else []
        raise MemlabError(
            f"{file}: no column '{missing[0]}'. {nearest(missing[0], found) if found else 'The file is empty.'}"
        )
    return lines


def _cell(column: Column, line: dict[str, str]) -> str:
    if len(text := unescaped(line[column.name])) > LONGEST:
        raise ValueError(f"column '{column.name}' holds {len(text):,} characters; at most {LONGEST:,} are allowed")
    return text


def _value(column: Column, text: str) -> Any:
    if column.key in BYTES:
        return round(_positive(column, text) * column.factor)
    if column.key in ("step_seconds", "iterations_per_second"):
        return _positive(column, text)
    if column.key in ("parameters", "rank"):
        return int(float(text))
    if column.key == "isolation" and text not in ISOLATIONS:
        raise ValueError(f"no isolation '{text}'. {nearest(text, ISOLATIONS)}")
    return text if column.key in ("status", "isolation", *GROUPS) else typed(text)


def _positive(column: Column, text: str) -> float:
    if not math.isfinite(value := float(text)) or value <= 0:
        raise ValueError(f"column '{column.name}' holds {shown(text)}; give a number above zero")
    return value


def typed(text: str) -> Any:
    """Parse a configuration value as JSON; return the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _status(values: dict[str, Any]) -> str:
    status = str(values.get("status", "ok")).strip().lower()
    status = {"": "ok", "oom": "gpu_oom"}.get(status, status)
    if status not in STATUSES:
        raise ValueError(f"no status '{status}'. {nearest(status, STATUSES)}")
    return status


def _rank(values: dict[str, Any], position: int) -> dict[str, Any]:
    own = {f.name for f in fields(RankResult)} - {"status", "step_seconds", "rank"}
    rates = [1 / values["iterations_per_second"]] if "iterations_per_second" in values else []
    seconds = [values["step_seconds"]] if "step_seconds" in values else rates
    figures = {key: value for key, value in values.items() if key in own}
    return imported_rank(values.get("rank", position), device_name="", step_seconds=seconds, **figures)
