"""Sandbox of a program: it runs as it is, and sees what it writes and deletes, but nothing outside of it changes.

Three protections, of which the first is taken that the system allows:

``namespaces``
    The kernel keeps every change of a file in overlays, gives the program a network of its own, and hides all other
    processes (``namespaces.py``). Nothing gets around it. Needs Linux 5.12 with namespaces for users.
``landlock``
    A library that every process of the program loads makes its writes land in an overlay (``redirection.cpp``). It is
    no wall. Below it, the kernel refuses what would change anything else (``wall.py``). Needs Linux 5.13 with Landlock.
``unprotected``
    The same without Landlock, so that a program which calls the kernel itself really writes. Only if the user says so.
"""

import contextlib
import math
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from memlab.core.errors import MemlabError
from memlab.core.record_schema import Files, SandboxEffects, Told
from memlab.core.sizes import MIB
from memlab.files.disk import cache_dir
from memlab.files.regular_file import read_end
from memlab.system.deadman import (
    SCRATCH,
    SCRATCH_PLACES,
    TOKEN_VARIABLE,
    Watched,
    descendants,
    kill_marked,
    remove_folder,
)
from memlab.system.sandbox import namespaces, wall
from memlab.system.sandbox.limits import POLL_S, check_limits
from memlab.system.sandbox.preloaded import NAMES, REDIRECTION, library
from memlab.system.sandbox.wall import REPORT

SIZE = "user.memlab.size"
"""Extended attribute with the size in bytes that a file would have, where its content was left out."""


DEEPEST, LONGEST = 200, 3000
"""The depth, and the bytes of a path, down to which changes are looked for."""


@dataclass(frozen=True)
class Layer:
    """What a program changed below ``folder``, kept in ``upper``.

    ``stands_in``: entries of ``upper`` with the set-user-ID bit stand for those of ``folder``, and folders without it
    are complete (redirection.cpp). Else it is a layer of the kernel's overlayfs: a device 0 is a deleted entry.
    ``began``: time of the clock (seconds); what others made in ``folder`` later was not deleted.
    """

    folder: Path
    upper: Path
    stands_in: bool
    began: float


class FileChanges:
    """Folder -> the files written and deleted in it: the topmost folder that was made or deleted, or else the folder
    that the files lie in. ``ignore``: a folder that is left out."""

    def __init__(self, layers: Iterable[Layer], ignore: Path):
        self._ignore = ignore
        self.written: dict[Path, Files] = {}
        self.deleted: dict[Path, Files] = {}
        for layer in layers:
            self._read(layer, layer.upper, layer.folder, None)

    def _read(self, layer: Layer, upper: Path, folder: Path, made: Path | None) -> None:
        """Read one folder. ``made``: the topmost new folder that it lies in."""
        if folder == self._ignore or len(folder.parts) > DEEPEST or len(os.fsencode(upper)) > LONGEST:
            return
        names = set()
        _allow_reading(upper)
        for entry in os.scandir(upper):
            names.add(entry.name)
            status, seen = entry.stat(follow_symlinks=False), folder / entry.name
            stands_in = layer.stands_in and bool(status.st_mode & stat.S_ISUID)
            if stands_in and not os.path.lexists(seen):
                continue  # others have removed it since
            if entry.is_dir(follow_symlinks=False):
                new = made or (None if _is_folder(seen) else seen)
                if new:
                    _add(self.written, new, 0, 0)
                self._read(layer, upper / entry.name, seen, new)
            elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                self._delete(seen)
            elif not stands_in and not _is_same_link(entry, seen):
                _add(self.written, made or folder, 1, _size(entry))
        if _is_complete(layer, upper):
            with contextlib.suppress(OSError):  # it is not there, or was removed by others
                for entry in os.scandir(folder):
                    if entry.name not in names and entry.stat(follow_symlinks=False).st_ctime < layer.began:
                        self._delete(folder / entry.name)

    def _delete(self, path: Path) -> None:
        if not _is_folder(path):
            with contextlib.suppress(FileNotFoundError):
                _add(self.deleted, path.parent, 1, path.lstat().st_size)
            return
        _add(self.deleted, path, 0, 0)
        for folder, _, names in os.walk(path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    _add(self.deleted, path, 1, os.lstat(os.path.join(folder, name)).st_size)


def _allow_reading(folder: Path) -> None:
    """Give memlab the right to read a folder that the program may have protected. Ignores a link in its place."""
    with contextlib.suppress(OSError):
        file = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.chmod(f"/proc/self/fd/{file}", 0o700 | stat.S_IMODE(os.fstat(file).st_mode))
        finally:
            os.close(file)


def _add(found: dict[Path, Files], folder: Path, files: int, size: int) -> None:
    counted = found.setdefault(folder, Files(folder=str(folder), files=0, bytes=0))
    counted["files"] += files
    counted["bytes"] += size


def _size(entry: os.DirEntry) -> int:
    with contextlib.suppress(OSError):
        return int(os.getxattr(entry.path, SIZE, follow_symlinks=False))
    return entry.stat(follow_symlinks=False).st_size


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_same_link(entry: os.DirEntry, seen: Path) -> bool:
    """Whether this symbolic link is as it was: complete folders hold copies of the links."""
    return entry.is_symlink() and seen.is_symlink() and os.readlink(entry.path) == os.readlink(seen)


def _is_complete(layer: Layer, upper: Path) -> bool:
    if layer.stands_in:
        return not upper.stat().st_mode & stat.S_ISUID
    with contextlib.suppress(OSError):
        return os.getxattr(upper, "user.overlay.opaque") == b"y"
    return False


NAMESPACES, LANDLOCK, UNPROTECTED = "namespaces", "landlock", "unprotected"
PROTECTIONS: tuple[str, ...] = (NAMESPACES, LANDLOCK)
"""Walls, in the order of preference."""

REFUSED, ANSWERED = "refused", "answered"
"""Files in the report: a line for each call that was refused, and for each upload that was answered."""
MOST_REPORTED = MIB
"""Bytes of such a file that are read."""

VARIABLE = "MEMLAB_SANDBOX"
"""Names the scratch folder in every process of the program. redirection.cpp and names.cpp explain this variable and the
others."""
NETWORK, KEEP, WITHOUT_WALL = f"{VARIABLE}_NETWORK", f"{VARIABLE}_KEEP", f"{VARIABLE}_UNPROTECTED"
OPEN, ALLOWED = "open", "allowed"

NO_WALL = (
    "This system gives neither unprivileged user namespaces with overlayfs nor Landlock with a filter of system calls: "
    "programs that call the kernel themselves would really write, delete and send. Predict on a machine or in a "
    "container that gives one of them, or accept this with --unprotected (docs/reliability.md)."
)


_WORKED: list[tuple | None] = []
"""The walls that worked in this process, each as :meth:`Sandbox._tried` describes it. A trial starts three programs,
which takes half a second."""


class SandboxError(MemlabError):
    """The system does not allow the protection that was asked for."""


def check_wall(environ: Mapping[str, str]) -> None:
    """Raise :class:`SandboxError` if a program with these variables would get no sandbox."""
    with tempfile.TemporaryDirectory() as keep, Sandbox(Path(keep), {**environ, TOKEN_VARIABLE: uuid.uuid4().hex}):
        pass


class Sandbox:
    """A context manager; after the block, every process of the program has ended and the scratch folder is gone.

    ``keep``: the folder that the program may really change. ``environ``: its variables, with the token of a launch,
    whose deadman removes the scratch folder if this process is killed; with ``MEMLAB_SANDBOX_NETWORK=open`` the program
    may connect to other machines, and with ``MEMLAB_SANDBOX_UNPROTECTED=allowed`` it runs even without a wall.
    ``protection``: the only one to take. ``below``: a folder, and what the program finds below its own files in
    namespaces. Raises :class:`SandboxError`.
    """

    def __init__(
        self,
        keep: Path,
        environ: Mapping[str, str],
        protection: str | None = None,
        below: tuple[Path, Sequence[Path]] = (Path("/"), ()),
    ):
        self.network = environ.get(NETWORK) == OPEN
        self._keep = keep.resolve()
        self._below = below
        self._token = environ[TOKEN_VARIABLE]
        unprotected = (UNPROTECTED,) if environ.get(WITHOUT_WALL) == ALLOWED else ()
        self._protections = (*PROTECTIONS, *unprotected) if protection is None else (protection,)
        self._libraries = {name: library(name) for name in (NAMES, REDIRECTION)}

    def __enter__(self) -> "Sandbox":
        places = [place for place in SCRATCH_PLACES if os.access(place, os.W_OK | os.X_OK)]
        for protection, place in product(self._protections, places):
            self.protection = protection
            if protection == UNPROTECTED or self._works(place):
                self._scratch = self._make_scratch(place)
                self._began = time.time()
                return self
        if not places:
            told = " and ".join(map(str, SCRATCH_PLACES))
            raise SandboxError(f"{told} cannot be written: a sandbox needs a scratch folder in one of them (TMPDIR).")
        raise SandboxError(NO_WALL)

    def __exit__(self, *_: object) -> None:
        kill_marked(self._token)
        with contextlib.suppress(OSError):  # an answer is not lost because a file stays
            remove_folder(self._scratch)

    def _make_scratch(self, place: Path) -> Path:
        scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{self._token}-", dir=place)).resolve()
        (scratch / REPORT).mkdir()
        upper = scratch / namespaces.UPPER
        upper.mkdir()
        if self.protection != NAMESPACES:
            upper.chmod(stat.S_ISUID | 0o700)
            (scratch / "loop").symlink_to("loop")
        for name, path in self._libraries.items():
            (scratch / name).symlink_to(path)  # LD_PRELOAD has no way to write a space
        return scratch

    def _works(self, place: Path) -> bool:
        """Whether the kernel makes the namespaces, and the current folder can be written in them as it can outside; or
        whether it has Landlock."""
        if self.protection == LANDLOCK and not wall.landlock_abi():
            return False
        writes = self.protection == NAMESPACES and os.access(".", os.W_OK)
        tried = self._tried(place, writes)
        if tried is not None and tried in _WORKED:
            return True
        self._scratch = self._make_scratch(place)
        try:
            words = ["mkdir", f"{self._scratch.name}-try"] if writes else ["true"]
            if subprocess.run(self.words(words), capture_output=True, timeout=30).returncode:
                return False
        except subprocess.TimeoutExpired:
            return False
        finally:
            remove_folder(self._scratch)
        _WORKED.append(tried)
        return True

    def _tried(self, place: Path, writes: bool) -> tuple | None:
        """Return what a trial depends on; ``None`` where the current folder or the one to keep is gone."""
        below = self._below if self._below[1] else None
        with contextlib.suppress(OSError):
            return self.protection, place, os.getcwd(), writes, self.network, below, self._keep.stat().st_dev
        return None

    def words(self, words: Sequence[str]) -> list[str]:
        """Return the words that run a program in the sandbox."""
        network = [namespaces.NETWORK] if self.network else []
        if self.protection != NAMESPACES:
            abi = wall.landlock_abi() if self.protection == LANDLOCK else 0
            options = [f"{namespaces.KEEP}{self._keep}", f"{wall.ABI}{abi}", *network]
            return wall.words_of(self._scratch, [self._scratch / NAMES, self._scratch / REDIRECTION], options, words)
        options = [*network, *(f"{namespaces.KEEP}{folder}" for folder in (self._keep, self._scratch / REPORT))]
        folder, layers = self._below
        if layers:
            options += [f"{namespaces.BELOW}{folder}", *(f"{namespaces.LAYER}{layer}" for layer in layers)]
        words = wall.words_of(self._scratch, [self._scratch / NAMES], network, words)
        return [sys.executable, "-I", "-S", namespaces.__file__, str(self._scratch), *options, "--", *words]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a program in the sandbox."""
        own = {VARIABLE: str(self._scratch), TOKEN_VARIABLE: self._token, NETWORK: OPEN if self.network else "closed"}
        if self.protection != NAMESPACES:
            own[KEEP] = str(self._keep)
        return {**environ, **own}

    def run(
        self, words: Sequence[str], env: Mapping[str, str], timeout: float | None = None, **streams: Any
    ) -> subprocess.CompletedProcess:
        """Run a program in the sandbox; the arguments are those of ``subprocess.run``.

        It gets a session of its own: else ``kill 0``, a signal to all processes of its group, would end memlab too.
        All its processes have ended when this function returns or raises ``subprocess.TimeoutExpired``, or
        :class:`LimitError` because the program took too much of the machine.
        """
        ends_at = math.inf if timeout is None else time.monotonic() + timeout
        watched = Watched(self.words(words), self.environment(env), self._token, **streams)
        try:
            while watched.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    watched.wait(POLL_S)
                if time.monotonic() > ends_at:
                    raise subprocess.TimeoutExpired(words, timeout or 0)
                check_limits(len(descendants(watched.deadman.pid)), (self._scratch, self._keep))
            return subprocess.CompletedProcess(words, watched.wait())
        finally:
            kill_marked(self._token, watched.deadman.pid)
            watched.dismiss()
            _allow_reading(self._keep)

    def effects(self) -> SandboxEffects:
        """Return what the program would have done outside: ``Record.command["effects"]``."""
        changes = FileChanges(self._layers(), ignore=cache_dir())
        return SandboxEffects(
            protection=self.protection,
            network=self.network,
            written=[*changes.written.values()],
            deleted=[*changes.deleted.values()],
            refused=[each for each in self._reported(REFUSED) if not self._is_own(each["what"])],
            answered=self._reported(ANSWERED),
        )

    def written_in(self, folder: Path) -> Path | None:
        """Return where the sandbox keeps what the program changed in a folder; ``None`` if nothing shows it."""
        layers = self._layers() if self.protection == NAMESPACES else []
        around = [layer for layer in layers if layer.folder in (folder, *folder.parents)]
        if not around or self._keep in (folder, *folder.parents):
            return None
        layer = max(around, key=lambda layer: len(layer.folder.parts))
        return layer.upper / folder.relative_to(layer.folder)

    def _reported(self, name: str) -> list[Told]:
        """Return the lines of a report, each once with its number, the first one first."""
        lines = read_end(self._scratch / REPORT / name, MOST_REPORTED).splitlines()
        return [Told(what=what, times=times) for what, times in Counter(lines).items()]

    def _is_own(self, what: str) -> bool:
        """Whether a connection was refused only because the program did not listen yet."""
        port = re.fullmatch(r"connection to (?:127\.\S+|\[::1\]):(\d+)", what)
        return port is not None and (self._scratch / REPORT / f"port{port[1]}").exists()

    def _layers(self) -> Iterator[Layer]:
        upper = self._scratch / namespaces.UPPER
        if self.protection != NAMESPACES:
            yield Layer(Path("/"), upper, True, self._began)
            return
        try:
            names = (self._scratch / namespaces.LAYERS).read_bytes().split(b"\0")
        except FileNotFoundError:  # memlab ended the program before it began
            return
        for number, name in enumerate(names):
            yield Layer(Path(os.fsdecode(name)), upper / str(number), False, self._began)
