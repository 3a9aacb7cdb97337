"""Data sets that the script of a prediction prepared: kept in memlab's own cache, for later predictions alone.

A sandbox drops what ``datasets`` writes into its cache, and preparing data can take most of a prediction. So each
prediction that ended well leaves a layer, and a later one of the same script sees all of them below the real folder of
``datasets``: read-only, and behind every real file of the same name. ``datasets`` names its files by the data and the
functions that made them, so it uses the files that fit and makes the others::

    CACHE/datasets/KEY/lock           held by the predictions that use the layers
    CACHE/datasets/KEY/LAYER/data     what the script added to the folder of datasets
    CACHE/datasets/KEY/LAYER/sources.json   the data files that it was made of, with their sizes and times

The key is of the script and of the folder. Only the protection by namespaces can show the layers.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from memlab.core.errors import WriteError
from memlab.core.sizes import GIB
from memlab.files.disk import ROOM, cache_folder, replacing, write_whole
from memlab.system.locks import hold

LIMIT = 10 * GIB
"""Bytes of all layers."""

MOST_GRAPHS = 2 * GIB
"""Bytes of compiled graphs after which their folder starts anew."""

GRAPHS = ("fxgraph", "aotautograd")
"""Folders that torch's compiler keeps graphs in."""

MOST_LAYERS = 8
"""Layers of a script: the kernel reads their paths from one page of options."""

PLACE, SOURCES = "datasets", "sources.json"

UNFINISHED = (".incomplete", ".lock")
"""Ends of the names of files and folders that are no result."""


@contextlib.contextmanager
def graphs_in_use(folder: Path) -> Iterator[None]:
    """Let nobody remove the compiled graphs in ``folder`` inside the block. A full cache starts anew before it."""
    lock = folder.parent / "lock"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no room: the graphs are compiled, and not kept
            folder.mkdir(parents=True, exist_ok=True)
            with hold(lock) as mine:
                if mine and _size(folder.parent) > MOST_GRAPHS:
                    for each in filter(Path.is_dir, folder.parent.iterdir()):
                        shutil.rmtree(each, ignore_errors=True)
            stack.enter_context(hold(lock, shared=True))
        yield


def keep_graphs(written: Path | None, folder: Path) -> None:
    """Copy compiled graphs from the sandbox into their folder in the cache, each file whole.

    ``written``: what was written into ``folder``; ``None``: nothing, or it cannot be seen.
    """
    if written is None:
        return
    with contextlib.suppress(OSError, WriteError):  # a full disk: the next prediction compiles them again
        for path in list(_added(written, [folder])):
            kept = path.relative_to(written)
            if kept.parts[0] in GRAPHS or len(kept.parts[0]) == 2:  # generated code: by two letters of its name
                (folder / kept).parent.mkdir(parents=True, exist_ok=True)
                with replacing(folder / kept) as unfinished:
                    shutil.copyfile(path, unfinished)


class KeptData:
    """The layers of one script. ``words``: its command; ``environ``: the variables of the command."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]):
        home = Path(environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
        self.folder = Path(environ.get("HF_DATASETS_CACHE") or home / "datasets").expanduser().resolve()
        scripts = [Path(word) for word in words if word.endswith(".py") and Path(word).is_file()]
        digests = [hashlib.sha256(script.read_bytes()).hexdigest() for script in scripts]
        key = hashlib.sha256(json.dumps([os.getcwd(), str(self.folder), digests]).encode()).hexdigest()[:16]
        self._entry = cache_folder(PLACE) / key
        self._is_held = False

    @contextlib.contextmanager
    def layers(self) -> Iterator[list[Path]]:
        """Yield the folders that ``self.folder`` has below it. None of them vanishes inside the block."""
        found: list[Path] = []
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # the prediction then prepares its data
                self._entry.mkdir(parents=True, exist_ok=True)
                self._is_held = stack.enter_context(hold(self._entry / "lock", shared=True))
                found = self._layers() if self._is_held else []
            yield found

    def keep(self, written: Path | None, sources: Sequence[str]) -> None:
        """Move what a script added to ``self.folder`` into a new layer. What cannot be kept is dropped.

        ``written``: the folder with the script's changes; ``None``: there are none. ``sources``: its data files.
        """
        if not self._is_held or written is None:
            return
        with contextlib.suppress(OSError, WriteError):  # a full disk: the next prediction prepares its data again
            layers = self._layers()
            added = list(_added(written, [self.folder, *layers]))
            if added and len(layers) < MOST_LAYERS and _has_room(sum(path.stat().st_size for path in added)):
                self._add_layer(written, added, sources)

    def _layers(self) -> list[Path]:
        """List the layers whose data files are as they were."""
        found = sorted(self._entry.glob(f"*/{SOURCES}"))
        return [sources.parent / "data" for sources in found if _are_unchanged(sources)]

    def _add_layer(self, written: Path, added: Sequence[Path], sources: Sequence[str]) -> None:
        """Make a layer. The file with its sources comes last: without it, the folder is no layer."""
        layer = Path(tempfile.mkdtemp(dir=self._entry))
        try:
            for path in added:
                target = layer / "data" / path.relative_to(written)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)
            write_whole(layer / SOURCES, json.dumps({path: _stamp(path) for path in sources}).encode())
        except BaseException:
            shutil.rmtree(layer, ignore_errors=True)
            raise


def _added(written: Path, seen: Sequence[Path]) -> Iterator[Path]:
    """Yield the finished files that none of the folders ``seen`` has."""
    for place, folders, names in os.walk(written):
        folders[:] = [name for name in folders if not name.endswith(UNFINISHED)]
        for path in (Path(place, name) for name in names if not name.endswith(UNFINISHED)):
            is_result = path.is_file() and not path.is_symlink() and not path.name.startswith("tmp")
            if is_result and not any((folder / path.relative_to(written)).exists() for folder in seen):
                yield path


def drop_all() -> int:
    """Remove what no prediction uses now. Returns the bytes."""
    return sum(map(_drop, _entries()))


def _stamp(path: str) -> list[int] | None:
    try:
        status = os.stat(path)
    except OSError:  # a file of the hub, or one that is gone
        return None
    return [status.st_size, status.st_mtime_ns]


def _are_unchanged(sources: Path) -> bool:
    try:
        return all(_stamp(path) == stamp for path, stamp in json.loads(sources.read_text()).items())
    except (ValueError, AttributeError):  # a damaged file: without it, the folder is no layer
        sources.unlink()
        return False


def _entries() -> list[Path]:
    """List the folders of all scripts, the one that was used last at the end."""
    return [lock.parent for lock in sorted(cache_folder(PLACE).glob("*/lock"), key=lambda lock: lock.stat().st_mtime)]


def _size(entry: Path) -> int:
    return sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())


def _has_room(size: int) -> bool:
    """Whether ``size`` bytes can be kept, once the scripts that were not used for longest have lost their layers."""
    entries = _entries()
    held = sum(map(_size, entries))
    for entry in entries:
        if held + size > LIMIT:
            held -= _drop(entry)
    return held + size <= LIMIT and shutil.disk_usage(cache_folder(PLACE)).free > size + ROOM


def _drop(entry: Path) -> int:
    """Remove the layers of a script that no prediction uses. Returns their bytes."""
    with hold(entry / "lock") as mine:
        if not mine:
            return 0
        size = _size(entry)
        shutil.rmtree(entry, ignore_errors=True)
        return size
