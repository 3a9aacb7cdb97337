"""Atomic file writing (a file is written whole or not at all), folders in the user's cache, and one-line messages for
files that cannot be used.

Where the cache cannot be written, the work goes on without it.
"""

import atexit
import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from memlab.core.errors import MemlabError, WriteError
from memlab.core.sizes import MIB

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

WHAT_TO_DO: dict[int | None, str] = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a place that you may read and write"),
    **dict.fromkeys(
        (errno.EEXIST, errno.ENOTDIR), "part of the path is a file, not a folder: choose another path, or move the file"
    ),
    **dict.fromkeys(DISK_FULL, "free some space, then run the same command again"),
    errno.ENOENT: "correct the path, or make its folder first",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}

SHOWN_CHARACTERS = 200
"""Longest path that an error message shows whole; of a longer path, it shows the two ends."""


def explain(error: OSError, path: str | os.PathLike | None = None) -> str:
    """Describe an error in one line: the path (default: the error's own), what is wrong with it, and what to do."""
    if len(where := str(path or error.filename or "a file")) > SHOWN_CHARACTERS:
        where = f"{where[: SHOWN_CHARACTERS // 2]}...{where[-SHOWN_CHARACTERS // 2 :]}"
    advice = WHAT_TO_DO.get(error.errno)
    return f"{where}: {error.strerror or error}{f'; {advice}' if advice else ''}."


@contextlib.contextmanager
def explained(
    kind: type[MemlabError], path: str | os.PathLike | None = None, prefix: str = "", suffix: str = ""
) -> Iterator[None]:
    """Run the block. If it cannot read or write a file, raise ``kind`` with one line: :func:`explain` between
    ``prefix`` and ``suffix``.

    ``path``: the file; by default the path of the :class:`OSError`, which a full disk does not name. A file that is not
    UTF-8 text cannot be read either.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise kind(f"{prefix}{path}: not UTF-8 text (byte {error.start}); save it as UTF-8.") from error
    except OSError as error:
        raise kind(prefix + explain(error, path) + suffix) from error


def is_full(error: BaseException | None) -> bool:
    """Whether a full disk caused ``error``, so that nothing else can be written either."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        error = error.__cause__
    return False


@contextlib.contextmanager
def replacing(path: Path, suffix: str = ".tmp") -> Iterator[Path]:
    """Yield a temporary file to write. It replaces ``path`` after the block, or is removed if the block raises.

    The file lies beside ``path``. ``suffix``: the end of its name, for writers that choose a format by it. A link or a
    pipe at ``path`` is replaced, too: a script may have left it. Raises :class:`WriteError`, which names ``path``.
    """
    with explained(WriteError, path, *_NOT_WRITTEN), _temporary(path, suffix) as temporary:
        yield temporary


@contextlib.contextmanager
def writing(path: Path, suffix: str = ".tmp") -> Iterator[Path]:
    """Yield a file to write at a path that the user named: as :func:`replacing`, but a link is followed.

    If ``path`` is a device or a pipe, ``path`` itself is yielded.
    """
    with explained(WriteError, path, *_NOT_WRITTEN):
        is_device = path.exists() and not path.is_file()
        with contextlib.nullcontext(path) if is_device else _temporary(path.resolve(), suffix) as file:
            yield file


_NOT_WRITTEN = ("Cannot write ", " No partial file is left.")


@contextlib.contextmanager
def _temporary(path: Path, suffix: str) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=suffix)
    try:
        yield Path(name)
        os.fsync(handle)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of memlab's own, whole or not at all. Raises :class:`WriteError`, which names ``path``."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_output(path: Path, content: bytes) -> None:
    """Write a file at a path that the user named, and its folder. Raises :class:`WriteError` and ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        file.write_bytes(content)


def cache_dir() -> Path:
    """Return memlab's cache folder. Ignores a relative XDG_CACHE_HOME, as the XDG specification requires."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named and not Path(named).is_absolute():
        _say_ignored(named)
        named = ""
    return (Path(named) if named else Path.home() / ".cache") / "memlab"


@cache
def _say_ignored(named: str) -> None:
    """Say once a process that a relative XDG_CACHE_HOME has no effect."""
    print(
        f"memlab: XDG_CACHE_HOME={named!r} is ignored, since it is relative: choose an absolute path. "
        "The cache is in ~/.cache",
        file=sys.stderr,
    )


ROOM = 64 * MIB
"""Bytes. On a disk with less free space, the traces of one configuration may not fit, so nothing is kept there."""


def cache_folder(name: str) -> Path:
    """Return the folder ``name`` in the user's cache, or in a temporary folder of this process if the cache cannot be
    written."""
    return _writable(cache_dir()) / name


@cache
def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            if shutil.disk_usage(folder).free < ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return folder
    except OSError as error:
        print(f"memlab: {explain(error, folder)} Nothing that this prediction computes will be kept.", file=sys.stderr)
    own = tempfile.mkdtemp(prefix="memlab-cache-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)
