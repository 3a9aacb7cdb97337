"""Build of the interposer (``interposer.cpp``): once, then cached."""

import hashlib
import shutil
import subprocess
from pathlib import Path

from memlab.core.errors import MemlabError
from memlab.files.disk import cache_folder, replacing

SOURCE = Path(__file__).with_name("interposer.cpp")

COMPILE_S = 120


class InterposerError(MemlabError):
    """The interposer cannot be built."""


def interposer() -> Path:
    """Return the library, and build it first if the cache does not have it. Raises :class:`InterposerError`."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = cache_folder("native") / f"interposer-{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        _build(library)
    return library


def _build(library: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise InterposerError(
            "A prediction of a command needs a C++ compiler once, and there is no g++ on the PATH: install g++ "
            "(Debian, Ubuntu: apt install g++) and predict again."
        )
    with replacing(library, suffix=".so") as unfinished:
        words = [
            "-std=c++20",
            "-O2",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-w",
            str(SOURCE),
            "-o",
            str(unfinished),
        ]
        try:
            done = subprocess.run([compiler, *words, "-ldl"], capture_output=True, text=True, timeout=COMPILE_S)
        except subprocess.TimeoutExpired:
            raise InterposerError(
                f"{SOURCE.name} was not built within {COMPILE_S} s: {compiler} still ran. Predict again when the "
                "machine is less busy."
            ) from None
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if "error" in line), f"{compiler} failed")
            raise InterposerError(f"{SOURCE.name} cannot be built: {why}")
