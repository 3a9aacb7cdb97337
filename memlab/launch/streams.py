"""Standard input and output of a launch: a log alone, or the caller's terminal with a copy in a log."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memlab.files.redact_file import Redactor

PIECE = 2**18
"""Bytes that are copied at a time."""


class ToLog:
    """No input; standard output and error go to a log."""

    own_session = True  # whether the processes leave the caller's terminal, and so its Ctrl-C

    def __init__(self, log: Path):
        self.log = log

    @contextlib.contextmanager
    def opened(self) -> Iterator[dict[str, Any]]:
        """Open the streams. Yields the arguments of ``subprocess.Popen`` for them."""
        with self.log.open("ab") as output:
            yield {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}

    def drain(self, seconds: float) -> None:
        """Return at once: the processes write to the log themselves."""


class ToTerminal:
    """The caller's own input; output to the caller's own standard output and error, and a copy of both to a log.

    Where the caller's output is a terminal, the processes also see one: a pseudo-terminal of the same size that changes
    no byte. Where it is a pipe or a file, they see a pipe. They stay in the caller's session and process group, so
    Ctrl-C, Ctrl-Z and reading from the terminal are as without memlab.
    """

    own_session = False

    def __init__(self, log: Path):
        self.log = log

    @contextlib.contextmanager
    def opened(self) -> Iterator[dict[str, Any]]:
        """Open a stream for standard output and one for standard error; only one if both go to the same place. Yields
        the arguments of ``subprocess.Popen`` for them."""
        ends = {1: _Tee(1)}
        ends[2] = ends[1] if os.path.sameopenfile(1, 2) else _Tee(2)
        tees = list(dict.fromkeys(ends.values()))
        log = _Log(self.log)
        try:
            yield {"stdout": ends[1].theirs, "stderr": ends[2].theirs}
        finally:
            for tee in tees:
                os.close(tee.theirs)
        self._copier = threading.Thread(target=_copy, args=(tees, log), name="output", daemon=True)
        self._copier.start()

    def drain(self, seconds: float) -> None:
        """Wait until all output of the processes has arrived; ``seconds`` at most."""
        self._copier.join(seconds)


Streams = ToLog | ToTerminal
"""Where a launch reads and writes."""


class _Log:
    """The copy of the output of one command, without secrets. Each stream is kept back until its line ends."""

    def __init__(self, path: Path):
        self._file = path.open("ab", buffering=0)
        self._streams: dict[int, Redactor] = defaultdict(Redactor)

    def write(self, stream: int, data: bytes) -> None:
        self._file.write(self._streams[stream].feed(data))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            for stream in self._streams.values():
                self._file.write(stream.end())
        self._file.close()


class _Tee:
    """One stream of the processes: they write to ``theirs``; memlab copies from ``ours`` to ``target``."""

    def __init__(self, target: int):
        self.target = target
        if os.isatty(target):
            self.ours, self.theirs = pty.openpty()
            _make_alike(self.ours, self.theirs, target)
        else:
            self.ours, self.theirs = os.pipe()
            with contextlib.suppress(OSError):  # more than the system allows: then it is smaller
                fcntl.fcntl(self.ours, fcntl.F_SETPIPE_SZ, PIECE)


def _make_alike(ours: int, theirs: int, model: int) -> None:
    """Give a pseudo-terminal the settings and the size of another terminal, but let it change no byte of the output.

    When the other terminal is resized, so is this one.
    """
    settings = termios.tcgetattr(model)
    settings[1] &= ~termios.OPOST  # the real terminal processes the output, once
    termios.tcsetattr(theirs, termios.TCSANOW, settings)

    def resize(*_: object) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(ours, termios.TIOCSWINSZ, fcntl.ioctl(model, termios.TIOCGWINSZ, bytes(8)))

    resize()
    signal.signal(signal.SIGWINCH, resize)


def _copy(tees: list[_Tee], log: _Log) -> None:
    """Copy until the last process has closed its output. If nobody reads any more, the processes notice it too."""
    left = {tee.ours: tee.target for tee in tees}
    with contextlib.closing(log):
        while left:
            for ready in select.select(list(left), [], [])[0]:
                data = _read(ready)
                with contextlib.suppress(OSError):  # a full disk; the command goes on, as it would without memlab
                    log.write(ready, data)
                if not data or not _write(left[ready], data):
                    os.close(ready)
                    del left[ready]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, PIECE)
    except OSError:  # Linux: nobody has the other end of a pseudo-terminal open any more (EIO)
        return b""


def _write(descriptor: int, data: bytes) -> bool:
    """Write all of ``data``. Returns false if nobody reads it any more."""
    try:
        while data:
            select.select([], [descriptor], [])
            data = data[os.write(descriptor, data) :]
    except OSError:
        return False
    return True
