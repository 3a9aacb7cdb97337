"""Programs in a sandbox, and what a folder holds."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from memlab.system.sandbox import Sandbox


def run(sandbox: Sandbox, words: list[str], folder: Path) -> subprocess.CompletedProcess:
    environment = sandbox.environment({**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    return subprocess.run(sandbox.words(words), cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def run_python(sandbox: Sandbox, lines: str, folder: Path) -> str:
    done = run(sandbox, [sys.executable, "-c", textwrap.dedent(lines)], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(folder: Path) -> dict[str, str | None]:
    """Path -> text, of files and links; ``None`` for a folder."""
    found: dict[str, str | None] = {}
    for each in sorted(folder.rglob("*")):
        name = str(each.relative_to(folder))
        found[name] = os.readlink(each) if each.is_symlink() else None if each.is_dir() else each.read_text()
    return found


def state(folder: Path) -> dict[Path, tuple]:
    """Path -> mode, owner, size, time, links and extended attributes."""
    found = {}
    for each in sorted(folder.rglob("*")):
        status = each.lstat()
        kept = (status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, status.st_nlink)
        found[each] = (*kept, *os.listxattr(each, follow_symlinks=False))
    return found
