"""Redirection of a rank's output to its log."""

import os
import sys

from memlab.runs.folder import RunFolder


def write_output_to(folder: RunFolder, rank: int) -> None:
    """Redirect standard output and error of this process, including its libraries, to the rank's log in ``folder``."""
    sys.stdout.flush()
    sys.stderr.flush()
    path = folder.rank_log(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
