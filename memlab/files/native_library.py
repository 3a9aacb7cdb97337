"""Build of a shared library in C++, with the compiler on the PATH."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from memlab.core.errors import MemlabError
from memlab.files.disk import replacing


class NativeLibraryError(MemlabError):
    """A native library cannot be built or loaded."""


def build(source: Path, library: Path, words: Sequence[str], timeout_s: float, target: str = "") -> None:
    """Compile ``source`` to ``library``, whole or not at all. ``words``: more words for the compiler. ``target``: what
    the library is built for, in messages.

    Raises :class:`NativeLibraryError`.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    if not (compiler := shutil.which("g++") or shutil.which("c++")):
        raise NativeLibraryError(
            "A prediction needs a C++ compiler once, and there is no g++ on the PATH: install g++ (Debian, Ubuntu: apt "
            "install g++) and predict again."
        )
    with replacing(library, suffix=".so") as unfinished:
        command = [compiler, "-std=c++20", "-fPIC", "-shared", "-w", str(source), "-o", str(unfinished), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise NativeLibraryError(
                f"{source.name} was not built{target} within {timeout_s} s: {compiler} still ran. Predict again when "
                "the machine is less busy."
            ) from None
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if "error" in line), f"{compiler} failed")
            raise NativeLibraryError(f"{source.name} cannot be built{target}: {why}")
