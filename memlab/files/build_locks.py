"""Locks of torch's builds of extensions. Torch waits for such a file to vanish, so for a killed build it waits forever.

The file is ``lock`` in the build folder of an extension. The building process keeps it open (torch.utils.file_baton).
Processes of a measured command load a copy of this module, so it imports only the standard library.
"""

import os
import time
from contextlib import suppress
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
    """Whether the lock is older than :data:`STALE_S`, and no process that this user can see holds it."""
    return holder(lock) is None and _age(lock) > STALE_S  # in this order: a lock that was just released is gone


def stale_locks(folder: Path) -> list[Path]:
    """List the stale locks below a folder of extensions."""
    return sorted(filter(is_stale, folder.rglob("lock")))


def old_locks(folder: Path) -> list[Path]:
    """List the locks below a folder of extensions that a rank may have waited for since :data:`STALE_S`."""
    return sorted(lock for lock in folder.rglob("lock") if _age(lock) > STALE_S)


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
    """Write what a lock keeps waiting, who holds it, and what to do."""
    waits = f"torch waits for {lock}"
    if (process := holder(lock)) is not None:
        return f"{waits}: {_described(process)} builds there; if it hangs, end it with kill {process}"
    return (
        f"{waits}, and nothing that is visible from here builds there: unless another machine does, end this command, "
        "and memlab doctor removes the lock (on a shared disk, once it is an hour old)"
    )


def holder(lock: Path) -> int | None:
    """Return the id of a process that has the lock open or builds in its folder, also one that a container has under
    another name; ``None`` if no such process can be seen."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if _holds(process, lock):
                return int(process.name)
    return None


def _age(lock: Path) -> float:
    """Return the seconds since a lock was made; 0 if it is gone."""
    try:
        return time.time() - lock.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _holds(process: Path, lock: Path) -> bool:
    """Whether a process (its folder in /proc) holds the lock. Another user's files cannot be seen: its builder counts
    if the lock is that user's."""
    is_builder = (process / "comm").read_text().strip() in BUILDERS
    try:
        return (is_builder and (process / "cwd").samefile(lock.parent)) or _has_open(process, lock)
    except PermissionError:
        return is_builder and process.stat().st_uid == lock.stat().st_uid


def _has_open(process: Path, lock: Path) -> bool:
    for file in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed
            if os.readlink(file).endswith(f"/{lock.name}") and file.samefile(lock):
                return True
    return False


def _described(process: int) -> str:
    folder = Path(f"/proc/{process}")
    with suppress(OSError, KeyError):  # it has ended, or its user has no name
        return f"process {process} ({(folder / 'comm').read_text().strip()}) of user {folder.owner()}"
    return f"process {process}"
