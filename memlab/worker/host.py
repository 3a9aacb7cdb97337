"""What the operating system says of this process's memory (Linux, proc(5))."""

import contextlib
import re
from pathlib import Path

STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """The resident set now."""
    return _field("VmRSS")


def peak_resident_bytes() -> int:
    """The highest resident set since the process began, or since :func:`reset_peak_resident`."""
    return _field("VmHWM")


def reset_peak_resident() -> None:
    """Let :func:`peak_resident_bytes` begin anew: "5" means just that (proc(5), clear_refs)."""
    with contextlib.suppress(OSError):  # not allowed in some containers: then peaks are those of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def _field(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
