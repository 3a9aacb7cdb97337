"""Cache of runs that were read from run folders, in the user's cache folder, so that they need not be read again.

A row is valid while the record keeps its modification time and size. If the cache cannot be read or written, all runs
are read from their folders. The cache holds JSON, never pickles. It lies outside the run folders, so a run folder from
somebody else cannot bring its own cache.
"""

import json
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from memlab.analyse.run_view import RunView
from memlab.files.disk import cache_dir

VERSION = 10
"""Version of the rows. Increase it when :class:`RunView`, :func:`view_of`, or the contents of a record change."""

Stamp = tuple[int, int]
"""Modification time in nanoseconds and size in bytes of a record."""

Row = tuple[str, int, int, str, str, str, str]
"""Path, modification time, size, and as JSON: the run's own values, its detail, its configuration, its environment."""

_SHARED = ("config", "environment")
"""Dictionaries whose parts recur in many runs; each distinct part is parsed once and shared."""

_OWN = tuple(f.name for f in fields(RunView) if f.name not in ("path", "detail", *_SHARED))


def cache_file() -> Path:
    """Return the path of the cache of parsed records."""
    return cache_dir() / f"runs-v{VERSION}.sqlite"


def load(root: str) -> dict[str, Row]:
    """Load all rows at or below ``root``: path -> row."""
    with suppress(sqlite3.Error, OSError), closing(_connect()) as database:
        query = "SELECT * FROM runs WHERE path = ? OR path BETWEEN ? AND ?"
        return {row[0]: row for row in database.execute(query, (root, root + os.sep, root + os.sep + "\U0010ffff"))}
    return {}


def store(rows: Iterable[Row], gone: Iterable[str]) -> None:
    """Store ``rows`` and delete the rows of the paths in ``gone``."""
    with suppress(sqlite3.Error, OSError), closing(_connect()) as database, database:
        database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        database.executemany("DELETE FROM runs WHERE path = ?", ((path,) for path in gone))


def _connect() -> sqlite3.Connection:
    file = cache_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(file, timeout=10)
    database.execute(
        "CREATE TABLE IF NOT EXISTS runs (path TEXT PRIMARY KEY, mtime_ns INTEGER, size INTEGER, "
        "own TEXT, detail TEXT, config TEXT, environment TEXT) WITHOUT ROWID"
    )
    return database


def pack(run: RunView, stamp: Stamp) -> Row:
    """Make the row of a run."""
    own = json.dumps([getattr(run, name) for name in _OWN])
    return (run.path, *stamp, own, run.detail, _lines(run.config), _lines(run.environment))


def unpack(row: Row, parts: dict[str, dict[str, Any]]) -> RunView:
    """Make the run of a row. ``parts`` caches parsed parts: give the same dictionary to every call."""
    shared: dict[str, Any] = dict(zip(_SHARED, (_merge(text, parts) for text in row[5:]), strict=True))
    return RunView(path=row[0], detail=row[4], **dict(zip(_OWN, json.loads(row[3]), strict=True)), **shared)


def _lines(values: dict[str, Any]) -> str:
    """Write one line per entry, so that equal parts of different runs are equal text."""
    return "\n".join(json.dumps({key: value}) for key, value in values.items())


def _merge(text: str, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for line in text.split("\n") if text else ():
        if line not in parts:
            parts[line] = json.loads(line)
        merged |= parts[line]
    return merged
