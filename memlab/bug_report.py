"""The last resort for an exception that nobody foresaw: three lines for a person, and the traceback in a file."""

import os
import shlex
import sys
import tempfile
import traceback

import memlab
from memlab.redaction import redact
from memlab.terminal import safe

SHOW = "MEMLAB_TRACEBACK"
"""The environment variable that has the traceback printed: ``MEMLAB_TRACEBACK=1``."""


def report_bug(error: Exception) -> None:
    """Print what happened, where to report it, and which file holds the traceback, without secrets."""
    trace = redact("".join(traceback.format_exception(error)))
    if os.environ.get(SHOW):
        print(*map(safe, trace.splitlines()), sep="\n", file=sys.stderr)
    message = safe(redact(f"{type(error).__name__}: {error}"))
    print(f"memlab: unexpected {message[:200]}", file=sys.stderr)
    print("memlab: this is a bug in memlab. Please report it to its authors, with the log.", file=sys.stderr)
    print(f"memlab: log: {_logged(trace)} ({SHOW}=1 prints it)", file=sys.stderr)


def _logged(trace: str) -> str:
    """The path of a new file, readable by this user alone, or why there is none."""
    command = redact(shlex.join(sys.argv))
    facts = f"memlab {memlab.__version__}, Python {sys.version}\n{command}\n\n"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="memlab-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as log:
            log.write(facts + trace)
    except OSError as error:
        return f"could not be written: {error.strerror}"
    return log.name
