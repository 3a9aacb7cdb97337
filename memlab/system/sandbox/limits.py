"""Limits of what a program in a sandbox may take, so that the machine stays usable: memory, processes and disk.

They say what is left for others, not what the program may have, since nobody knows what a script needs. memlab looks
every ``POLL_S`` seconds. Should the machine's memory end in between, the kernel ends programs in namespaces first.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from memlab.core.errors import MemlabError
from memlab.core.sizes import GIB, KIB
from memlab.system.deadman import control_group

POLL_S = 0.2


def _memory(name: str) -> int:
    """Return a size of this machine's memory in bytes (proc_meminfo(5))."""
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * KIB if found else 0


MOST_PROCESSES = max(400, 8 * (os.cpu_count() or 1))
MEMORY_LEFT = max(GIB, _memory("MemTotal") // 20)
DISK_LEFT = GIB
"""Bytes that stay free on each file system."""


class LimitError(MemlabError):
    """A program was ended because it took too much of the machine."""


def check_limits(processes: int, folders: Iterable[Path]) -> None:
    """Raise :class:`LimitError` if a program with so many processes, which writes to ``folders``, takes too much."""
    if processes > MOST_PROCESSES:
        raise LimitError(f"it was ended with {processes:,} processes; at most {MOST_PROCESSES:,} may run")
    if (left := free_host_memory()) < MEMORY_LEFT:
        told = f"{left / GIB:.1f} GiB of host memory were left, and {MEMORY_LEFT / GIB:.1f} stay free for others"
        raise LimitError(f"it was ended because only {told}")
    for folder in folders:
        if (free := shutil.disk_usage(folder).free) < DISK_LEFT:
            told = f"{free / GIB:.1f} GiB were left on the disk of {folder}, and {DISK_LEFT / GIB:.1f} stay free"
            raise LimitError(f"it was ended because only {told} for others")


def free_host_memory() -> int:
    """Return the smaller of the machine's available memory and the rest of this container's limit (cgroup v2), in
    bytes. What only caches files is free."""
    available = _memory("MemAvailable")
    with contextlib.suppress(OSError, ValueError):  # cgroup v1, or the limit is "max"
        group = control_group()
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.findall(r"^(?:in)?active_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        return min(available, limit - used + sum(map(int, cached)))
    return available
