"""The native library that makes torch see CUDA devices without a GPU: built once per torch version, then cached.

Does not import torch: the library must be loaded first.
"""

import ctypes
import hashlib
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from memlab.core.errors import MemlabError
from memlab.files.disk import replacing

SOURCE = Path(__file__).with_name("guard.cpp")

RECORD, STREAM_WAITS, HOST_WAITS_FOR_EVENT, HOST_WAITS = range(4)
"""Kinds of reports of the library about events and waits; the same numbers as ``What`` in guard.cpp."""

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
"""Receives (what, event, stream). It is called on any thread."""

_COMPILE_S = 300


class NativeLibraryError(MemlabError):
    """The native library cannot be built or loaded."""


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
    torch = Path(find_spec("torch").origin).parent
    digest = hashlib.sha256(SOURCE.read_bytes() + str(torch).encode()).hexdigest()[:16]
    name = f"cuda-torch{version('torch')}-{digest}.so"
    library = folder / name
    if not library.exists():
        library = (new or folder) / name
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        _build(library, torch)
    found = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    found.memlab_install.argtypes = [ctypes.c_int, CALLBACK]
    found.memlab_stream.restype = found.memlab_new_stream.restype = ctypes.c_int64
    found.memlab_set_stream.argtypes = [ctypes.c_int64]
    return found


def keep(new: Path, folder: Path) -> None:
    """Copy the libraries that were built in ``new`` to ``folder``, where the next process looks for them."""
    for library in new.glob("cuda-torch*.so"):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / library.name, suffix=".so") as unfinished:
            shutil.copyfile(library, unfinished)


def _build(library: Path, torch: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise NativeLibraryError(
            "A prediction needs a C++ compiler, once for each version of torch, and there is no g++ on the PATH: "
            "install g++ (Debian, Ubuntu: apt install g++) and predict again."
        )
    with replacing(library, suffix=".so") as unfinished:
        words = [
            *(compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-w", str(SOURCE), "-o", str(unfinished)),
            *(f"-I{torch / 'include'}", f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-lc10", "-ltorch_cpu"),
        ]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_COMPILE_S)
        except subprocess.TimeoutExpired:
            raise NativeLibraryError(
                f"{SOURCE.name} was not built for torch {version('torch')} within {_COMPILE_S} s: {compiler} still "
                "ran. Predict again when the machine is less busy."
            ) from None
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if "error" in line), f"{compiler} failed")
            raise NativeLibraryError(f"{SOURCE.name} cannot be built for torch {version('torch')}: {why}")
