"""Opening of files where other programs write: no link is followed, and no pipe is waited for.

Scripts of the user write into run folders. They may leave a link to another file there, a pipe, a device or a folder.
"""

import errno
import os
import stat
import tempfile
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path

from memlab.core.sizes import GIB

LARGEST = GIB
"""Bytes of the largest file that is read: a trace or a memory history, which takes about 80 bytes for an event."""

ANY_SIZE = 1 << 63


def open_itself(path: str, flags: int) -> int:
    """Open a file as ``opener`` of :func:`open`. Neither the file nor its folder may be a link: ``Path.resolve``
    follows the links of a path that the user named.

    A pipe is opened without waiting for its other end.
    """
    try:
        folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            return os.open(os.path.basename(path), flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        error.filename = path
        raise _not_regular(path) if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO) else error from None


def open_regular(path: Path, largest: int = LARGEST) -> BufferedReader:
    """Open a regular file of at most ``largest`` bytes to read them. Raises ``OSError`` for anything else."""
    file = open(path, "rb", opener=open_itself)  # noqa: SIM115
    facts = os.fstat(file.fileno())
    if stat.S_ISREG(facts.st_mode) and facts.st_size <= largest:
        return file
    file.close()
    if not stat.S_ISREG(facts.st_mode):
        raise _not_regular(path)
    raise OSError(errno.EFBIG, f"too large ({facts.st_size:,} bytes; the limit is {largest:,})", str(path))


def _not_regular(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "not a regular file (links are not followed)", str(path))


def read_regular(path: Path, largest: int = LARGEST) -> bytes:
    """Read a file. Raises ``OSError`` as :func:`open_regular`."""
    with open_regular(path, largest) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_end(path: Path, most_bytes: int) -> str:
    """Read the last bytes of a text file of any size; empty if it cannot be read. A mark replaces bytes that are not
    UTF-8."""
    with suppress(OSError), open_regular(path, ANY_SIZE) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes).decode(errors="replace")
    return ""


def clear(path: Path) -> None:
    """Remove a file, or rename a folder that a script has put in its place."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        path.rename(tempfile.mkdtemp(prefix=f"{path.name}.", dir=path.parent))


def create(path: Path) -> FileIO:
    """Open a new file to write, unbuffered. What else has this name is cleared first."""
    clear(path)
    return open(path, "xb", buffering=0, opener=open_itself)
