"""Files that a program would have changed, read from the layers that its sandbox kept its changes in."""

import contextlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from memlab.core.record_schema import Files

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
