"""The place in the user's code: the innermost frame that is not of Python, of an installed package or of memlab."""

import functools
import os
import sys
import sysconfig
import tempfile
from traceback import walk_tb
from types import FrameType

_START = os.getcwd()
_NOT_THE_USERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),  # memlab, or the copy of a part of it
    *(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
)
_SCRIPTS = {os.path.dirname(sys.executable), os.path.realpath(sysconfig.get_path("scripts"))}
"""Folders of the programs that packages install: ``bin/yolo`` only calls its package."""


def user_line(frame: FrameType | None = None) -> str | None:
    """Return ``file:line`` of the innermost frame of the user, the file relative to the folder of the start.

    ``frame``: default, the caller's. ``None``: no frame is the user's, as under a command of an installed package.
    """
    frame = frame or sys._getframe(1)
    while frame is not None:  # a third of the time of traceback.walk_stack, at every boundary of phases
        if name := user_file(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def raised_at(error: BaseException) -> str | None:
    """Return ``file:line`` of the innermost frame of the user in the traceback of an exception."""
    frames = walk_tb(error.__traceback__)
    places = [f"{name}:{line}" for each, line in frames if (name := user_file(each.f_code.co_filename))]
    return places[-1] if places else None


@functools.cache
def user_file(file: str) -> str | None:
    """Return the path of a file of the user, relative to the folder of the start if it is below; else ``None``.

    The first answer for a file is kept, because every boundary of phases asks for it.
    """
    if file.startswith("<") or is_generated(file) or {"site-packages", "dist-packages"} & set(file.split(os.sep)):
        return None
    path = os.path.realpath(os.path.join(_START, file))
    if path.startswith(tuple(folder + os.sep for folder in _NOT_THE_USERS)):
        return None
    if os.path.dirname(path) in _SCRIPTS and not path.endswith(".py"):
        return None
    if any(path.startswith(folder + os.sep) and _holds_packages(folder) for folder in sys.path[1:]):
        return None
    return os.path.relpath(path, _START) if path.startswith(_START + os.sep) else path


def is_generated(file: str) -> bool:
    """Whether torch.compile wrote a file of Python code."""
    folder = os.path.join(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or "\0", "")
    return file.startswith((folder, os.path.join(tempfile.gettempdir(), "torchinductor_")))


@functools.cache
def _holds_packages(folder: str) -> bool:
    """Whether packages are installed into a folder of ``sys.path`` (``pip install --target``)."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False
