"""Redirection of a rank's output to its log."""

import os
import sys
from pathlib import Path

from memlab.runs.folder import RunFolder


def write_output_to(folder: RunFolder, rank: int) -> None:
    """Redirect standard output and error of this process, including its libraries, to the rank's log in ``folder``."""
    sys.stdout.flush()
    sys.stderr.flush()
    path = folder.rank_log(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    redirect_output(path)


def redirect_output(log: Path, flags: int = 0) -> None:
    """Redirect standard output and error of this process to ``log``. ``flags``: further ones of open(2)."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
