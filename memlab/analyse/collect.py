"""Collection of runs from output folders. An unreadable folder is listed in ``skipped`` and stops nothing."""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from memlab.analyse import run_cache
from memlab.analyse.run_view import RunView, view_of
from memlab.core.errors import MemlabError, RecordError
from memlab.meters.garbage_collector import paused_garbage_collector
from memlab.runs.folder import RunFolder

MANY = 500
"""From this many folders on, all cores read; for fewer, starting the processes costs more than it saves."""


@dataclass(frozen=True)
class Skipped:
    """A path that could not be read, and the reason in one line."""

    path: str
    reason: str


@dataclass
class Collection:
    """Runs that were found, ordered by path, and places that were skipped."""

    runs: list[RunView] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


@paused_garbage_collector()
def collect(paths: Sequence[str | os.PathLike]) -> Collection:
    """Find all runs at or below ``paths``. Raises :class:`MemlabError` for a path that does not exist."""
    collection = Collection()
    seen: set[str] = set()
    for path in paths:
        root = os.path.realpath(path)
        if not os.path.isdir(root):
            raise MemlabError(f"{os.fspath(path)}: no such folder. Give run folders, or folders that hold them.")
        known, stamps = run_cache.load(root), dict(_walk(root, collection.skipped))
        here = [path for path in stamps if path not in seen]
        seen.update(here)
        rows = {path: known[path] for path in here if path in known and known[path][1:3] == stamps[path]}
        read = _read_all([(path, stamps[path]) for path in here if path not in rows])
        new = [row for row in read if not isinstance(row, Skipped)]
        collection.skipped += [each for each in read if isinstance(each, Skipped)]
        parts: dict[str, dict[str, Any]] = {}
        collection.runs += [run_cache.unpack(row, parts) for row in (*rows.values(), *new)]
        gone = known.keys() - stamps.keys()
        if new or gone:
            run_cache.store(new, gone)
    collection.runs.sort(key=lambda run: run.path)
    return collection


def _read_all(fresh: list[tuple[str, run_cache.Stamp]]) -> list[run_cache.Row | Skipped]:
    """Read the rows of these folders, on all cores for :data:`MANY` or more. Never forks a process that has threads."""
    if len(fresh) < MANY or threading.active_count() > 1:
        return [_read_row(found) for found in fresh]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        return list(pool.map(_read_row, fresh, chunksize=100))


def _read_row(found: tuple[str, run_cache.Stamp]) -> run_cache.Row | Skipped:
    path, stamp = found
    try:
        return run_cache.pack(read_run(path), stamp)
    except RecordError as error:
        return Skipped(path, str(error).removeprefix(path + os.sep))


def read_run(path: str | os.PathLike) -> RunView:
    """Read the run of one folder. Raises :class:`RecordError` if it has no readable record of this schema version."""
    folder = RunFolder(path)
    return view_of(folder.read_record(), str(folder))


def _walk(root: str, skipped: list[Skipped]) -> Iterator[tuple[str, run_cache.Stamp]]:
    """Yield every run folder with the stamp of its record, and put the places that are not read into ``skipped``.
    Never follows links."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        if any("\ud800" <= letter <= "\udfff" for letter in folder):  # Python's stand-ins for bytes that are not UTF-8
            skipped.append(Skipped(os.fsencode(folder).decode(errors="replace"), "the folder's name is not UTF-8"))
            continue
        try:
            record = os.lstat(os.path.join(folder, RunFolder.RECORD))
        except OSError:
            _look_below(folder, root, waiting, skipped)
            continue
        yield folder, (record.st_mtime_ns, record.st_size)


def _look_below(folder: str, root: str, waiting: list[str], skipped: list[Skipped]) -> None:
    """Add the subfolders of a folder without a record to ``waiting``, and places that are not read to ``skipped``."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name, reverse=True)
    except OSError as error:
        skipped.append(Skipped(folder, f"cannot be listed ({error.strerror})"))
        return
    if any(entry.name == RunFolder.PLAN for entry in entries):
        skipped.append(Skipped(folder, f"no {RunFolder.RECORD}: the run is not over, or was killed"))
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            waiting.append(entry.path)
        elif entry.is_symlink() and os.path.isdir(entry.path) and not Path(entry.path).resolve().is_relative_to(root):
            skipped.append(Skipped(entry.path, "a link to another folder; links are not followed"))
