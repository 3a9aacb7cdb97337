"""Locks of torch's builds of extensions. Torch waits for such a file to vanish, so for a killed build it waits forever.

The file is ``lock`` in the build folder of an extension (torch.utils.file_baton). Processes of a measured command load
a copy of this module, so it imports only the standard library.
"""

import contextlib
import time
from pathlib import Path

STALE_S = 20.0
"""Seconds: torch starts its build tool much sooner after it has made the lock."""

BUILDERS = {"ninja", "nvcc", "cc1plus"}
"""Programs that torch builds with, in the build folder: the kernel's names of their processes."""


def is_stale(lock: Path) -> bool:
    """Whether the lock is older than :data:`STALE_S`, and no process that this user can see builds in its folder."""
    try:
        age = time.time() - lock.stat().st_mtime
    except FileNotFoundError:
        return False
    return age > STALE_S and not _is_built_in(lock.parent)


def stale_locks(folder: Path) -> list[Path]:
    """List the stale locks below a folder of extensions."""
    return sorted(filter(is_stale, folder.rglob("lock")))


def told(lock: Path) -> str:
    """Write what a stale lock does, and what to do."""
    left = f"torch waits for {lock}, and nothing on this machine builds there"
    return f"{left}: unless another machine does, end this command, and memlab doctor removes the lock"


def _is_built_in(folder: Path) -> bool:
    """Whether a compiler or its build tool runs in a folder, also one that a container has under another name."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if (process / "comm").read_text().strip() in BUILDERS and (process / "cwd").samefile(folder):
                return True
    return False
