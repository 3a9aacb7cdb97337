"""Memory figures of this process from the operating system, in bytes (Linux, proc(5))."""

import contextlib
import os
import resource

STATUS = "/proc/self/status"
STATUS_BYTES = 4096
"""More than the file holds before and up to the figures that are read."""


class HostMemory:
    """The resident set, whose peak memlab resets while the script keeps its view: ``resource.getrusage``."""

    def __init__(self):
        self.highest = 0  # since the process began

    def install(self) -> None:
        getrusage = resource.getrusage

        def script_getrusage(who: int) -> resource.struct_rusage:
            usage = getrusage(who)
            if who != resource.RUSAGE_SELF:
                return usage
            values = list(usage)
            values[2] = max(usage.ru_maxrss, self.highest // 1024)  # ru_maxrss, in KiB on Linux
            return resource.struct_rusage(values)

        resource.getrusage = script_getrusage

    def turn(self) -> tuple[int, int]:
        """Return the resident set now and its peak since the last turn, and begin a new one."""
        file = os.open(STATUS, os.O_RDONLY)  # open() costs three times as much, at every boundary of phases
        try:
            text = os.read(file, STATUS_BYTES)
        finally:
            os.close(file)
        now, peak = _field(text, b"VmRSS:"), _field(text, b"VmHWM:")
        self.highest = max(self.highest, peak)
        with contextlib.suppress(OSError):  # some containers forbid it: then each peak is that since the process began
            file = os.open("/proc/self/clear_refs", os.O_WRONLY)
            try:
                os.write(file, b"5")  # resets the peak
            finally:
                os.close(file)
        return now, peak


def _field(text: bytes, name: bytes) -> int:
    """Return a figure of /proc/self/status, 0 if it is not there."""
    _, _, after = text.partition(name)
    return int(after.split(maxsplit=1)[0]) * 1024 if after else 0
