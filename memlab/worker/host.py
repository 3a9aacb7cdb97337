"""Memory figures of this process from the operating system, in bytes (Linux, proc(5))."""

import contextlib
import re
from pathlib import Path

STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """Return the current resident set in bytes."""
    return _field("VmRSS")


def peak_resident_bytes() -> int:
    """Return the highest resident set in bytes since the process began, or since :func:`reset_peak_resident`."""
    return _field("VmHWM")


def reset_peak_resident() -> None:
    """Reset the peak of :func:`peak_resident_bytes` by writing "5" to clear_refs (proc(5))."""
    with contextlib.suppress(OSError):  # some containers forbid it: then each peak is the peak since the process began
        Path("/proc/self/clear_refs").write_text("5")


def _field(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
