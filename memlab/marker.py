"""Whose a folder is: memlab writes only into folders that were empty when it came, or that carry its marker."""

import os
from collections.abc import Callable
from pathlib import Path

from memlab.disk import explain
from memlab.errors import FolderError

MARKER = ".memlab"
TEXT = "A folder of memlab. Later runs replace and remove the files in it that have memlab's names, and no others.\n"


def check(folder: Path, is_from_before: Callable[[], bool]) -> None:
    """Raise :class:`FolderError` for a folder that holds files and no marker.

    ``is_from_before``: whether a memlab that knew no marker made the folder; asked only where there is none.
    """
    try:
        names = os.listdir(folder)  # once: another memlab may be making the folder at this moment, marker first
    except FileNotFoundError:
        return
    except OSError as error:
        raise FolderError(explain(error, folder)) from error
    if names and MARKER not in names and not is_from_before():
        raise FolderError(
            f"{folder} holds files that are not memlab's ({min(names)}, for one): nothing was written. "
            "Choose an empty folder or a new one."
        )


def claim(folder: Path, is_from_before: Callable[[], bool]) -> None:
    """Make the folder memlab's: the marker is the first file in it. Raises :class:`FolderError` as :func:`check`."""
    check(folder, is_from_before)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MARKER).exists():
            (folder / MARKER).write_text(TEXT, encoding="utf-8")
    except OSError as error:
        raise FolderError(explain(error, error.filename or folder / MARKER)) from error  # a full disk names no file
