"""Report of an unexpected exception: three lines on standard error, and the traceback in a log file."""

import os
import shlex
import sys
import tempfile
import traceback

import memlab
from memlab.files.redaction import redact
from memlab.system.terminal import safe

SHOW = "MEMLAB_TRACEBACK"
"""Environment variable: with ``MEMLAB_TRACEBACK=1`` the traceback is also printed."""


def report_bug(error: Exception) -> int:
    """Print the error, where to report it, and the file that holds the traceback. Secrets are blanked out. Returns the
    exit code of a bug."""
    trace = redact("".join(traceback.format_exception(error)))
    if os.environ.get(SHOW):
        print(*map(safe, trace.splitlines()), sep="\n", file=sys.stderr)
    message = safe(redact(f"{type(error).__name__}: {error}"))
    print(f"memlab: unexpected {message[:200]}", file=sys.stderr)
    print("memlab: this is a bug in memlab. Please report it to the authors and attach the log.", file=sys.stderr)
    print(f"memlab: log: {_logged(trace)} ({SHOW}=1 prints it)", file=sys.stderr)
    return os.EX_SOFTWARE


def _logged(trace: str) -> str:
    """Write the log to a new file that only this user can read. Return its path, or why it could not be written."""
    facts = f"memlab {memlab.__version__}, Python {sys.version}\n{redact(shlex.join(sys.argv))}\n\n"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="memlab-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as log:
            log.write(facts + trace)
    except OSError as error:
        return f"could not be written: {error.strerror}"
    return log.name
