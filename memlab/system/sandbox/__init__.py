"""Sandbox of a program: it runs as it is, and sees what it writes and deletes, but nothing outside of it changes.

Two protections, of which the first is taken that the system allows:

``namespaces``
    The kernel keeps every change of a file in overlays, gives the program a network of its own, and hides all other
    processes (``namespaces.py``). Nothing gets around it. Needs Linux 5.12 with namespaces for users.
``interception``
    A library that every process of the program loads does the same for all that goes through the C library
    (``interposer.cpp``). Not seen: static programs (most of those in Go), programs with set-user-ID (sudo), and system
    calls that are made directly.

The library is loaded in both, since only it can list the connections that were refused.
"""

import contextlib
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from memlab.core.errors import MemlabError
from memlab.core.record_schema import Effects, Files, Told
from memlab.files.disk import cache_dir
from memlab.system.deadman import SCRATCH, SCRATCH_PLACES, TOKEN_VARIABLE, kill_marked, remove_folder
from memlab.system.sandbox import namespaces
from memlab.system.sandbox.interposer import interposer

SIZE = "user.memlab.size"
"""Extended attribute with the size in bytes that a file would have, where its content was left out."""


@dataclass(frozen=True)
class Layer:
    """What a program changed below ``folder``, kept in ``upper``.

    ``stands_in``: entries of ``upper`` with the set-user-ID bit stand for those of ``folder``, and folders without it
    are complete (interposer.cpp). Else it is a layer of the kernel's overlayfs: a device 0 is a deleted entry.
    ``began``: time of the clock (seconds); what others made in ``folder`` later was not deleted.
    """

    folder: Path
    upper: Path
    stands_in: bool
    began: float


@dataclass
class Changes:
    """Folder -> number and bytes of the files written and deleted in it: the topmost folder that was made or deleted,
    or else the folder that the files lie in. ``ignore``: a folder that is left out."""

    ignore: Path
    written: dict[Path, list[int]] = field(default_factory=dict)
    deleted: dict[Path, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, layers: Iterable[Layer], ignore: Path) -> "Changes":
        """Read the layers, but for what was changed below ``ignore``."""
        changes = cls(ignore)
        for layer in layers:
            changes._read(layer, layer.upper, layer.folder, None)
        return changes

    def _read(self, layer: Layer, upper: Path, folder: Path, made: Path | None) -> None:
        """Read one folder. ``made``: the topmost new folder that it lies in."""
        if folder == self.ignore:
            return
        names = set()
        os.chmod(upper, 0o700 | stat.S_IMODE(os.stat(upper).st_mode))  # the program may have forbidden to read it
        for entry in os.scandir(upper):
            names.add(entry.name)
            status, seen = entry.stat(follow_symlinks=False), folder / entry.name
            stands_in = layer.stands_in and bool(status.st_mode & stat.S_ISUID)
            if stands_in and not os.path.lexists(seen):
                continue  # others have removed it since
            if entry.is_dir(follow_symlinks=False):
                new = made or (None if _is_folder(seen) else seen)
                if new:
                    self.written.setdefault(new, [0, 0])
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


def _add(found: dict[Path, list[int]], folder: Path, files: int, size: int) -> None:
    counted = found.setdefault(folder, [0, 0])
    counted[0] += files
    counted[1] += size


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


def as_list(found: dict[Path, list[int]]) -> list[Files]:
    return [Files(folder=str(folder), files=files, bytes=size) for folder, (files, size) in found.items()]


NAMESPACES, INTERCEPTION = "namespaces", "interception"
PROTECTIONS = (NAMESPACES, INTERCEPTION)
"""In the order of preference."""

REPORT = "report"
"""Folder in the scratch folder that the program's processes really write to."""
REFUSED, ANSWERED = "refused", "answered"
"""Files in it: a line for each connection or signal that was refused, and for each upload that was answered."""

VARIABLE = "MEMLAB_SANDBOX"
"""Names the scratch folder in every process of the program. interposer.cpp explains this variable and the others."""
NETWORK, KEEP = f"{VARIABLE}_NETWORK", f"{VARIABLE}_KEEP"
OPEN = "open"

TRY_S = 30


class SandboxError(MemlabError):
    """The system does not allow the protection that was asked for."""


class Sandbox:
    """A context manager; after the block, every process of the program has ended and the scratch folder is gone.

    ``keep``: the folder that the program may really change. ``environ``: its variables, with the token of a launch,
    whose deadman removes the scratch folder if this process is killed; with ``MEMLAB_SANDBOX_NETWORK=open`` the program
    may connect to other machines. ``protection``: the only one to take. ``below``: a folder, and what the program finds
    below its own files in namespaces. Raises :class:`SandboxError`.
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
        self._prefix = f"{SCRATCH}{environ[TOKEN_VARIABLE]}-"
        self._protections = PROTECTIONS if protection is None else (protection,)
        self._library = interposer()

    def __enter__(self) -> "Sandbox":
        places = [place for place in SCRATCH_PLACES if os.access(place, os.W_OK | os.X_OK)]
        for protection, place in product(self._protections, places):
            self.protection = protection
            if protection == INTERCEPTION or self._works(place):
                self._scratch = self._make_scratch(place)
                self._began = time.time()
                return self
        if not places:
            told = " and ".join(map(str, SCRATCH_PLACES))
            raise SandboxError(f"{told} cannot be written: a sandbox needs a scratch folder in one of them (TMPDIR).")
        raise SandboxError("Unprivileged user namespaces with overlayfs are disabled here.")

    def __exit__(self, *_: object) -> None:
        self._kill()
        remove_folder(self._scratch)

    def _make_scratch(self, place: Path) -> Path:
        scratch = Path(tempfile.mkdtemp(prefix=self._prefix, dir=place)).resolve()
        (scratch / REPORT).mkdir()
        upper = scratch / namespaces.UPPER
        upper.mkdir()
        if self.protection == INTERCEPTION:
            upper.chmod(stat.S_ISUID | 0o700)
            (scratch / "loop").symlink_to("loop")
        return scratch

    def _works(self, place: Path) -> bool:
        """Whether the kernel makes the namespaces, and the current folder can be written in them as it can outside."""
        self._scratch = self._make_scratch(place)
        try:
            words = ["mkdir", self._scratch.name] if os.access(".", os.W_OK) else ["true"]
            return not subprocess.run(self.words(words), capture_output=True, timeout=TRY_S).returncode
        except subprocess.TimeoutExpired:
            return False
        finally:
            remove_folder(self._scratch)

    def words(self, words: Sequence[str]) -> list[str]:
        """Return the words that run a program in the sandbox."""
        if self.protection == INTERCEPTION:
            return list(words)
        options = [namespaces.NETWORK] if self.network else []
        options += [f"{namespaces.KEEP}{folder}" for folder in (self._keep, self._scratch / REPORT)]
        folder, layers = self._below
        if layers:
            options += [f"{namespaces.BELOW}{folder}", *(f"{namespaces.LAYER}{layer}" for layer in layers)]
        return [sys.executable, "-I", "-S", namespaces.__file__, str(self._scratch), *options, "--", *words]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a program in the sandbox."""
        library = self._scratch / "interposer.so"  # LD_PRELOAD has no way to write a space
        with contextlib.suppress(FileExistsError):
            library.symlink_to(self._library)
        own = {
            "LD_PRELOAD": " ".join(filter(None, [str(library), environ.get("LD_PRELOAD")])),
            VARIABLE: str(self._scratch),
            NETWORK: OPEN if self.network else "closed",
        }
        if self.protection == INTERCEPTION:
            own[KEEP] = str(self._keep)
        return {**environ, **own}

    def run(self, words: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.CompletedProcess:
        """Run a program in the sandbox; the arguments are those of ``subprocess.run``.

        It gets a session of its own: else ``kill 0``, a signal to all processes of its group, would end memlab too.
        With ``timeout``, all its processes have ended when ``subprocess.TimeoutExpired`` is raised.
        """
        environ = self.environment(env)
        try:
            return subprocess.run(self.words(words), env=environ, start_new_session=True, **options)
        except subprocess.TimeoutExpired:
            self._kill()
            raise

    def _kill(self) -> None:
        kill_marked(str(self._scratch), variable=VARIABLE)

    def effects(self) -> Effects:
        """Return what the program would have done outside: ``Record.command["effects"]``."""
        changes = Changes.of(self._layers(), ignore=cache_dir())
        return Effects(
            protection=self.protection,
            network=self.network,
            written=as_list(changes.written),
            deleted=as_list(changes.deleted),
            refused=[each for each in self._reported(REFUSED) if not self._is_own(each["what"])],
            answered=self._reported(ANSWERED),
        )

    def written_in(self, folder: Path) -> Path | None:
        """Return where the sandbox keeps what the program changed in a folder; ``None`` if nothing shows it."""
        layers = [] if self.protection == INTERCEPTION else self._layers()
        around = [layer for layer in layers if layer.folder in (folder, *folder.parents)]
        if not around or self._keep in (folder, *folder.parents):
            return None
        layer = max(around, key=lambda layer: len(layer.folder.parts))
        return layer.upper / folder.relative_to(layer.folder)

    def _reported(self, name: str) -> list[Told]:
        """Return the lines of a report, each once with its number, the first one first."""
        try:
            lines = (self._scratch / REPORT / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        return [Told(what=what, times=times) for what, times in Counter(lines).items()]

    def _is_own(self, what: str) -> bool:
        """Whether a connection was refused only because the program did not listen yet."""
        port = re.fullmatch(r"connection to (?:127\.\S+|\[::1\]):(\d+)", what)
        return port is not None and (self._scratch / REPORT / f"port{port[1]}").exists()

    def _layers(self) -> Iterator[Layer]:
        upper = self._scratch / namespaces.UPPER
        if self.protection == INTERCEPTION:
            yield Layer(Path("/"), upper, True, self._began)
            return
        names = (self._scratch / namespaces.LAYERS).read_bytes().split(b"\0")
        for number, name in enumerate(names):
            yield Layer(Path(os.fsdecode(name)), upper / str(number), False, self._began)
