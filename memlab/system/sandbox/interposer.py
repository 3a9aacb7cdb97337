"""Build of the interposer (``interposer.cpp``): once, then cached."""

import hashlib
from pathlib import Path

from memlab.files.disk import cache_folder
from memlab.files.native_library import build

SOURCE = Path(__file__).with_name("interposer.cpp")

COMPILE_S = 120


def interposer() -> Path:
    """Return the library, and build it first if the cache does not have it. Raises :class:`NativeLibraryError`."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = cache_folder("native") / f"interposer-{digest}.so"
    if not library.exists():
        build(SOURCE, library, ("-O2", "-fvisibility=hidden", "-ldl"), COMPILE_S)
    return library
