"""The folder of a user's own stand-ins, which every rank of a predicted command reads."""

import os
from pathlib import Path

from memlab.core.errors import FolderError

VARIABLE = "MEMLAB_STAND_INS"
"""Environment variable with the path of the folder."""


def choose(folder: Path) -> None:
    """Let the ranks that this process starts read ``folder``. Raises :class:`FolderError` if it has no stand-ins."""
    if not any(folder.glob("*.py")):
        raise FolderError(
            f"{folder} holds no stand-ins: files NAME.py with a function stand_in(gpu), as "
            "docs/your_own_command.md shows."
        )
    os.environ[VARIABLE] = str(folder.resolve())


def files() -> list[Path]:
    """Return the files of the chosen folder, in the order of their names."""
    folder = os.environ.get(VARIABLE)
    return sorted(Path(folder).glob("*.py")) if folder else []
