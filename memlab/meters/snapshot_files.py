"""Torch's memory snapshot of this process, and the marks that explain it: two files of a rank."""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any, BinaryIO

import torch


def write(place: Path, suffixes: tuple[str, str], snapshot: dict[str, Any], marks: dict[str, Any]) -> None:
    """Write both files or, on a full disk, none: then earlier ones stay. Raises ``OSError``.

    ``place``: the rank's file, beside which they lie; ``suffixes``: the ends of their names, the snapshot's first.
    ``marks`` get the folders by which the files of a stack are named, and the SHA-256 of the snapshot's file, by which
    a reader knows that both belong together.
    """
    import_paths = [path for path in sys.path if isinstance(path, str)]  # Python passes over what a script adds else
    marks = {"folder": os.getcwd(), "import_paths": import_paths, **marks}
    files = [place.with_suffix(suffix) for suffix in suffixes]
    parts = [file.with_name(f".{file.name}.{os.getpid()}.tmp") for file in files]
    try:
        with parts[0].open("wb") as file:
            hashed = _HashedFile(file)
            pickle.dump(snapshot, hashed, protocol=4)
        parts[1].write_text(json.dumps({**marks, "snapshot_sha256": hashed.digest.hexdigest()}), "utf-8")
        for part, path in zip(parts, files, strict=True):
            part.replace(path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


class _HashedFile:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO):
        self._file, self.digest = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return self._file.write(content)


def take() -> dict[str, Any]:
    """Return torch's snapshot, with the names of C++ functions looked up the fast way: by the dynamic linker."""
    variable = "TORCH_SYMBOLIZE_MODE"
    before = os.environ.get(variable)
    os.environ.setdefault(variable, "dladdr")
    try:
        return torch.cuda.memory._snapshot()
    finally:
        if before is None:
            del os.environ[variable]


def address(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's memory on the GPU; ``None`` if it has none."""
    return tensor.untyped_storage().data_ptr() or None if tensor.is_cuda else None
