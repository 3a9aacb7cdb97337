"""The last lines of a run's logs, whatever their size and whatever is in them."""

import os
import stat
from pathlib import Path

from memlab.record import RunFolder

LAST_BYTES = 4096
"""Of one log: what says how a run ended, at a size that 500 runs can have on one page."""

MOST_LOGS = 2


def log_tails(folder: RunFolder) -> dict[str, str]:
    """File name -> its end. The launcher's log first; links are not followed."""
    logs = folder.path / RunFolder.LOGS
    if logs.is_symlink() or not logs.is_dir():
        return {}
    paths = sorted(folder.logs, key=lambda path: (path != folder.launcher_log, path))
    found = {path.name: _tail(path) for path in paths[:MOST_LOGS]}
    return {name: text for name, text in found.items() if text}


def _tail(path: Path) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe must not make us wait
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return ""
        file.seek(max(0, status.st_size - LAST_BYTES))
        text = file.read(LAST_BYTES).decode("utf-8", errors="replace")
    return "".join(letter for letter in text if letter in "\n\t" or letter.isprintable()).strip()
