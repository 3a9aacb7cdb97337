"""Last lines of a run's logs, of any size and with any bytes."""

import os
import stat
from pathlib import Path

from memlab.runs.folder import RunFolder

LAST_BYTES = 4096
"""Bytes of the end of a log: enough to show how the run ended, and small enough for 500 runs on a page."""

MOST_LOGS = 2


def log_tails(folder: RunFolder) -> dict[str, str]:
    """Read the end of each log: file name -> text, the launcher's log first. Does not follow links."""
    logs = folder.path / RunFolder.LOGS
    if logs.is_symlink() or not logs.is_dir():
        return {}
    paths = sorted(folder.logs, key=lambda path: (path != folder.launcher_log, path))
    found = {path.name: _tail(path) for path in paths[:MOST_LOGS]}
    return {name: text for name, text in found.items() if text}


def _tail(path: Path) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # O_NONBLOCK: do not wait for a pipe
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return ""
        file.seek(max(0, status.st_size - LAST_BYTES))
        text = file.read(LAST_BYTES).decode("utf-8", errors="replace")
    return "".join(letter for letter in text if letter in "\n\t" or letter.isprintable()).strip()
