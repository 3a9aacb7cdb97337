"""Build of the libraries that programs in a sandbox load (``redirection.cpp``, ``names.cpp``): once, then cached."""

import hashlib
from pathlib import Path

from memlab.files.disk import cache_folder
from memlab.files.native_library import build

REDIRECTION, NAMES = "redirection", "names"


def library(name: str) -> Path:
    """Return the library, and build it first if the cache does not have it. Raises :class:`NativeLibraryError`."""
    source = Path(__file__).with_name(f"{name}.cpp")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    built = cache_folder("native") / f"{name}-{digest}.so"
    if not built.exists():
        build(source, built, ("-O2", "-fvisibility=hidden", "-ldl"), timeout_s=120)
    return built
