"""The line of a log that says why a process failed."""

import re
from pathlib import Path

from memlab.core.sizes import MIB
from memlab.files.regular_file import read_end
from memlab.simulator.rank.unpredictable import EXPLAINED

_RANK = re.compile(r"^(?:\[(?:rank|default)\d+\]:\s*)+")  # before each line, by torch and torchrun
_NAME = r"(?:[\w.]+(?:Error|Exception|Interrupt)|SystemExit)\b"
_EXCEPTION = re.compile(rf"^{_NAME}(?:.*:\s*\n(?!{_NAME}|Traceback ))?.*", re.M)
"""Line that names an exception, with the next one where it ends with a colon and no exception follows."""

_OF_A_LAUNCHER = ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "subprocess.CalledProcessError")
"""Exceptions of torchrun and accelerate about a rank that has failed with one of its own."""


MOST_LOG = 64 * MIB
"""Bytes at the end of a log in which its last exception is looked for."""

_OF_ARGPARSE = "SystemExit: The script ended itself with exit code 2"


def last_exception(log: Path) -> str:
    """Return the last line of a log that names an exception, or else its last line, at most 500 characters.

    An exception of a launcher counts where there is no other. After a crash (``faulthandler``), the line names the
    innermost place in Python.
    """
    text = [_RANK.sub("", line) for line in read_end(log, MOST_LOG).splitlines()]
    if crash := re.search(r'Fatal Python error: (.+)\n[^"]+"(.+)", line (\d+)', "\n".join(text)):
        return (
            f"{crash[2]}:{crash[3]}: {crash[1]} in compiled code, which reads memory that tensors do not have in a "
            "prediction"
        )
    explained = [line for line in text if EXPLAINED in line]  # a launcher has the last word
    exceptions = [" ".join(found.split()) for found in _EXCEPTION.findall("\n".join(text))]
    of_ranks = [line for line in exceptions if not line.startswith(_OF_A_LAUNCHER)]
    if of_ranks and of_ranks[-1].startswith(_OF_ARGPARSE):  # which has printed the reason
        of_ranks = [line for line in text if ": error: " in line] or of_ranks
    last_words = explained or of_ranks or exceptions or [line for line in text if line.strip()]
    return last_words[-1].rpartition(EXPLAINED)[2][:500] if last_words else "its log is empty"
