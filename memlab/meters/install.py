"""Put the bootstrap into a run folder, and onto the path of the processes of a command."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from .options import MeterOptions

FOLDER = ".attach"
PACKAGE = "memlab_attach"  # the name of the copy: a script that imports memlab gets its ordinary answer
BESIDE = ("files/__init__.py", "files/build_locks.py", "files/redaction.py")
"""What this package imports of memlab, by relative names."""

BOOTSTRAP = "sitecustomize.py"
LOADED = "loaded"  # the bootstrap makes this file once a process of the command has imported torch


def install(run_folder: Path, options: MeterOptions) -> Path:
    """Copy this package and write the options into a new folder in the run folder. Returns the folder, for PYTHONPATH.

    Raises ``OSError``, also where the folder is there: links that a script has left in it would be followed.
    """
    folder, memlab = run_folder / FOLDER, Path(__file__).parents[1]
    folder.mkdir(parents=True)
    own = [module for module in (memlab / "meters").rglob("*.py") if module.name != BOOTSTRAP]
    for module in [*own, *(memlab / name for name in BESIDE)]:
        copy = folder / PACKAGE / module.relative_to(memlab)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, copy)
    (folder / PACKAGE / "__init__.py").touch()
    shutil.copy(memlab / "meters" / BOOTSTRAP, folder)
    options.write(folder)
    return folder


def environment(environ: Mapping[str, str], run_folder: Path) -> dict[str, str]:
    """Return the environment with the bootstrap first on PYTHONPATH, and otherwise as it is.

    DeepSpeed's launcher carries PYTHONPATH to other nodes. They load the bootstrap if they see the run folder.
    """
    path = [str((run_folder / FOLDER).resolve()), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": os.pathsep.join(path)}


def has_loaded(run_folder: Path) -> bool:
    """Whether a process of the command has imported torch under the bootstrap."""
    return (run_folder / FOLDER / LOADED).exists()


def remove(run_folder: Path) -> None:
    """Remove what was installed, once the command is over; only the files of its other trainings stay."""
    folder = run_folder / FOLDER
    if folder.is_symlink():
        folder.unlink()
    for path in folder.glob("*"):
        if path.is_file():
            path.unlink()
    for made in (PACKAGE, "__pycache__"):
        shutil.rmtree(folder / made, ignore_errors=True)
    if folder.exists() and not any(folder.glob("*")):
        folder.rmdir()
