"""``SystemExit`` of a script: Python ends with its code, calls no hook, and does not keep the line that raised it."""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

_FLAGS = 21 * ctypes.sizeof(ctypes.c_void_p)
"""Offset of ``tp_flags`` in a type (``PyTypeObject``, Include/cpython/object.h)."""

_IMMUTABLE = 1 << 8
"""``Py_TPFLAGS_IMMUTABLETYPE``."""

_TOOL = 4
"""Of those of ``sys.monitoring``, one that neither debuggers, coverage nor profilers have."""


def listen(heard: Callable[[Any], None]) -> None:
    """Call ``heard`` with the code of each ``SystemExit``, where it is raised (before Python 3.12: made).

    The script may catch it and go on.
    """
    if sys.version_info >= (3, 12):
        _listen_to_raised(heard)
    else:
        _listen_to_made(heard)


def _listen_to_raised(heard: Callable[[Any], None]) -> None:
    def raised(code: Any, offset: int, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            heard(error.code)

    events: Any = getattr(sys, "monitoring")  # noqa: B009  # Python 3.11 has none, and mypy reads for that version
    events.use_tool_id(_TOOL, "memlab")
    events.register_callback(_TOOL, events.events.RAISE, raised)
    events.set_events(_TOOL, events.events.RAISE)


def _listen_to_made(heard: Callable[[Any], None]) -> None:
    """Give ``SystemExit`` another ``__init__``, which Python allows for types that are not immutable."""
    flags = ctypes.c_ulong.from_address(id(SystemExit) + _FLAGS)
    if flags.value != SystemExit.__flags__:  # another layout of types
        return
    init = SystemExit.__init__

    def init_and_tell(error: SystemExit, *arguments: Any) -> None:
        init(error, *arguments)
        heard(error.code)

    flags.value &= ~_IMMUTABLE
    SystemExit.__init__ = init_and_tell  # type: ignore[assignment, method-assign]
    flags.value |= _IMMUTABLE
