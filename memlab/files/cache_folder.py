"""Folders in the user's cache. Where the cache cannot be written, the work goes on without it."""

import atexit
import errno
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from memlab.core.sizes import MIB
from memlab.files.disk import cache_dir, explain

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
