"""The variables of the script, and the one that holds an object."""

import functools
import gc
import inspect
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from traceback import walk_stack
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from .source_lines import loops_around
from .where import user_file

DEPTH = 3
"""Levels of containers between an object and its variable."""

MOST_HOLDERS = 8
"""Most objects that refer to an object and are followed."""

OWN_HOLDERS = 3
"""References to the copy of a frame's variables that the script does not have: the frame's, ours and the count's."""


class Variable(NamedTuple):
    """``name``: as the script writes it, ``self.history['losses']``. ``root``: the name or the attribute that the
    source is searched for, ``history``. ``file``: the source; ``None``: not known. ``function``: the first line of the
    function whose variable it is. ``is_made_again``: a loop calls this function."""

    name: str
    root: str
    file: str | None
    function: int | None = None
    is_made_again: bool = False


def variable_of(wanted: Any, until: float, depth: int = DEPTH) -> Variable | None:
    """Return the variable that holds an object: of a running function of the script, of a module or of an instance.

    ``until``: the time of ``time.monotonic`` after which nothing more is followed.
    """
    if time.monotonic() > until:
        return None
    for variable, value in user_variables():
        if value is wanted:
            return variable
    holders = [each for each in gc.get_referrers(wanted) if not isinstance(each, FrameType)][:MOST_HOLDERS]
    for holder in holders:
        if found := _in_namespace(wanted, holder):
            return found
    for holder in holders if depth else ():
        if type(holder) in (dict, list, tuple, deque) and (outer := variable_of(holder, until, depth - 1)):
            items = holder.items() if isinstance(holder, Mapping) else enumerate(holder)
            key = next((key for key, value in items if value is wanted), 0)
            return outer._replace(name=f"{outer.name}[{key!r}]")
    return None


def user_variables() -> Iterator[tuple[Variable, Any]]:
    """Yield the variables of the script's running functions and their modules, and the attributes of their objects."""
    frames = list(user_frames())
    for number, frame in enumerate(frames):
        code, local = frame.f_code, local_variables(frame)
        of_function = code.co_firstlineno, any(loops_of(outer) for outer in frames[number + 1 :])
        is_module = code.co_name == "<module>"
        for names, of in (({} if is_module else local, of_function), (frame.f_globals, (None, False))):
            for name, value in list(names.items()):
                yield Variable(name, name, code.co_filename, *of), value
                if not isinstance(value, ModuleType | type) and isinstance(getattr(value, "__dict__", None), dict):
                    of_class = getattr(sys.modules.get(type(value).__module__), "__file__", None)
                    for attribute, inner in list(vars(value).items()):
                        yield Variable(f"{name}.{attribute}", str(attribute), of_class), inner


def user_frames() -> Iterator[FrameType]:
    """Yield the running functions of the script, the innermost first."""
    return (frame for frame, _ in walk_stack(sys._getframe(1)) if user_file(frame.f_code.co_filename))


def loops_of(frame: FrameType) -> list[Any]:
    """Return the loops around the line that a function runs, the outermost first; none if its source is not known."""
    return _loops_at(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=256)
def _loops_at(file: str, line: int) -> list[Any]:
    try:
        return loops_around(Path(file).read_text("utf-8"), line)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []


def local_variables(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a function. Before Python 3.13 its frame keeps the copy that is asked for, and would keep
    the script's tensors with it: that copy is emptied, unless the script has it, too, from ``locals()``."""
    kept = frame.f_locals
    found = dict(kept)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(kept, dict) and sys.getrefcount(kept) <= OWN_HOLDERS:
        kept.clear()
    return found


def _in_namespace(wanted: Any, holder: Any) -> Variable | None:
    """Return the variable of a module, a class or an instance. ``holder``: its namespace, or the instance itself."""
    owners = [*sys.modules.values(), *gc.get_referrers(holder)] if type(holder) is dict else [holder]
    for owner in owners:
        namespace = getattr(owner, "__dict__", None)
        if namespace is not holder and not (owner is holder or isinstance(owner, type)):
            continue
        name = next((name for name, value in dict(namespace or {}).items() if value is wanted), None)
        if isinstance(name, str):
            if isinstance(owner, ModuleType):
                return Variable(name, name, getattr(owner, "__file__", None))
            of = owner if isinstance(owner, type) else type(owner)
            file = getattr(sys.modules.get(of.__module__), "__file__", None)
            return Variable(f"{of.__name__}.{name}", name, file)
    return None
