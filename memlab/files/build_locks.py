"""Locks of torch's builds of extensions. Torch waits for such a file to vanish, so for a killed build it waits forever.

The file is ``lock`` in the build folder of an extension (torch.utils.file_baton). Processes of a measured command load
a copy of this module, so it imports only the standard library.
"""

import os
import time
from pathlib import Path

STALE_S = 20.0
"""Seconds: torch starts its build tool much sooner after it has made the lock."""

FOREIGN_S = 3600.0
"""Seconds after which a lock is removed although its build may run where this process cannot look: three times the
longest build that memlab waits for."""

OF_THIS_MACHINE = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs", "zfs"}
OF_THIS_CONTAINER = {"overlay", "tmpfs"}
"""File systems that no other machine, or no other container, writes to."""

ALL_PROCESSES = "pid:[4026531836]"
"""The namespace of processes in which a machine starts (Linux: PROC_PID_INIT_INO): it sees those of all containers."""

BUILDERS = {"ninja", "nvcc", "cc1plus"}
"""Programs that torch builds with, in the build folder: the kernel's names of their processes."""


def is_stale(lock: Path) -> bool:
    """Whether the lock is older than :data:`STALE_S`, and no process that this user can see builds in its folder."""
    return _age(lock) > STALE_S and not _is_built_in(lock.parent)


def stale_locks(folder: Path) -> list[Path]:
    """List the stale locks below a folder of extensions."""
    return sorted(filter(is_stale, folder.rglob("lock")))


def may_be_removed(lock: Path) -> bool:
    """Whether no build can hold a stale lock: one that could would be visible, or :data:`FOREIGN_S` have passed."""
    kind = file_system(lock.parent)
    sees_all = kind in OF_THIS_MACHINE and os.readlink("/proc/self/ns/pid") == ALL_PROCESSES
    return kind in OF_THIS_CONTAINER or sees_all or _age(lock) > FOREIGN_S


def file_system(folder: Path) -> str:
    """Return the kind of file system that holds a folder, as Linux names it."""
    place, deepest, kind = folder.resolve(), "", ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        options, _, source = line.partition(" - ")
        mount = options.split()[4].encode().decode("unicode_escape")  # a space is \040
        if place.is_relative_to(mount) and len(mount) >= len(deepest):  # of several at one place, the last one is seen
            deepest, kind = mount, source.split()[0]
    return kind


def told(lock: Path) -> str:
    """Write what a stale lock does, and what to do."""
    left = f"torch waits for {lock}, and nothing that is visible from here builds there: unless another machine does, "
    return left + "end this command, and memlab doctor removes the lock (on a shared disk, once it is an hour old)"


def _age(lock: Path) -> float:
    """Return the seconds since a lock was made; 0 if it is gone."""
    try:
        return time.time() - lock.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_built_in(folder: Path) -> bool:
    """Whether a compiler or its build tool runs in a folder, also one that a container has under another name."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() in BUILDERS and (process / "cwd").samefile(folder):
                return True
        except PermissionError:  # a build of another user, perhaps in this folder
            return True
        except OSError:  # it has ended
            continue
    return False
