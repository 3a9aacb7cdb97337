"""The native library that makes torch see CUDA devices without a GPU: built once per torch version, then cached.

Does not import torch: the library must be loaded first.
"""

import ctypes
import hashlib
import os
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memlab.core.sizes import MIB
from memlab.files.disk import cache_folder, write_whole
from memlab.files.native_library import NativeLibraryError, build
from memlab.files.regular_file import read_regular

SOURCE = Path(__file__).with_name("guard.cpp")
HEADERS = SOURCE.with_name("include")  # in place of torch's

RECORD, STREAM_WAITS, HOST_WAITS_FOR_EVENT, HOST_WAITS = range(4)
"""Kinds of reports of the library about events and waits; the same numbers as ``What`` in guard.cpp."""

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
"""Receives (what, event, stream). It is called on any thread."""

_COMPILE_S = 300

_NAME = re.compile(r"cuda-torch[\w.+]+-[0-9a-f]{16}\.so")

_LARGEST = 16 * MIB
"""Bytes of a library: one has 100 KB."""


def check_torch(oldest: tuple[int, ...]) -> None:
    """Raise :class:`NativeLibraryError` if the installed torch is older than version ``oldest``."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        raise NativeLibraryError(
            f"The version of torch of {sys.executable} is unknown: its package has no metadata (pip show torch). "
            "Install it with pip."
        ) from None
    if tuple(map(int, re.findall(r"\d+", found)[: len(oldest)])) < oldest:
        needed = ".".join(map(str, oldest))
        raise NativeLibraryError(f"torch {found} of {sys.executable} is too old: predictions need {needed} or newer.")


def load(folder: Path, new: Path | None = None) -> ctypes.CDLL:
    """Load the library for the installed torch from ``folder``. Where it is not there, build it in ``new`` (``None``:
    in ``folder``), and load it from there.

    Raises :class:`NativeLibraryError` when torch is imported already or the library cannot be built.
    """
    if "torch._C" in sys.modules:
        raise NativeLibraryError("The simulated CUDA device must be loaded before torch is imported.")
    spec: Any = find_spec("torch")  # which is about to be imported
    torch = Path(spec.origin).parent
    read = b"".join(file.read_bytes() for file in (SOURCE, *sorted(HEADERS.rglob("*.h"))))
    digest = hashlib.sha256(read + str(torch).encode()).hexdigest()[:16]
    name = f"cuda-torch{version('torch')}-{digest}.so"
    library = folder / name
    if not library.exists():
        library = (new or folder) / name
    if not library.exists():
        _build(library, torch)
    found = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    found.memlab_install.argtypes = [ctypes.c_int, CALLBACK]
    found.memlab_stream.restype = found.memlab_new_stream.restype = ctypes.c_int64
    found.memlab_set_stream.argtypes = [ctypes.c_int, ctypes.c_int64]
    return found


def of_commands() -> Path:
    """The folder of the libraries that processes of commands have built. No process outside of a sandbox loads one: a
    script may have written it."""
    return cache_folder("native-of-commands")


def keep(new: Path, folder: Path) -> None:
    """Copy the libraries that were built in ``new`` to ``folder``, where the next process looks for them."""
    for library in filter(_NAME.fullmatch, os.listdir(new)):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / library, read_regular(new / library, _LARGEST))


def _build(library: Path, torch: Path) -> None:
    places = (f"-I{HEADERS}", f"-I{torch / 'include'}", f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}")
    build(SOURCE, library, ("-O1", *places, "-lc10", "-ltorch_cpu"), _COMPILE_S, f" for torch {version('torch')}")
