"""Marker of memlab's folders: memlab writes only into folders that were empty, or that hold this marker file."""

import os
from collections.abc import Callable
from pathlib import Path

from memlab.core.errors import FolderError
from memlab.files.disk import explained
from memlab.files.regular_file import open_itself

MARKER = ".memlab"
TEXT = "A folder of memlab. Later runs replace and remove the files in it that have memlab's names, and no others.\n"


def refuse_foreign_files(folder: Path, is_from_before: Callable[[], bool]) -> None:
    """Raise :class:`FolderError` for a folder that holds files but no marker.

    ``is_from_before``: returns whether an old memlab without markers made the folder. It is called only for a folder
    without a marker; if it returns True, nothing is raised.
    """
    with explained(FolderError, folder):
        try:
            names = os.listdir(folder)  # one call: another memlab may be making the folder now, marker first
        except FileNotFoundError:
            return
    if names and MARKER not in names and not is_from_before():
        raise FolderError(
            f"{folder} holds files that are not memlab's ({min(names)}, for one): nothing was written. "
            "Choose an empty folder or a new one."
        )


def claim(folder: Path, is_from_before: Callable[[], bool]) -> None:
    """Make the folder and write the marker as its first file. Raises what :func:`refuse_foreign_files` raises."""
    refuse_foreign_files(folder, is_from_before)
    with explained(FolderError):
        folder.mkdir(parents=True, exist_ok=True)
    with explained(FolderError, folder / MARKER):
        if not (folder / MARKER).exists():
            with open(folder / MARKER, "w", encoding="utf-8", opener=open_itself) as file:
                file.write(TEXT)
