"""Path types for ``argparse``."""

import argparse
from pathlib import Path

from memlab.runs.folder import RunFolder


def output_file(text: str) -> Path:
    """Return the path of a file to write. Refuses a folder, and a file that a run left in its folder."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: name a file in it")
    target = path.resolve()
    if RunFolder(target.parent).owns(target.name):
        raise argparse.ArgumentTypeError(f"{path} belongs to a run, which would lose it: choose another name")
    return path
