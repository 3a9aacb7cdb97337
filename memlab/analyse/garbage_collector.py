"""Pause of Python's garbage collector, for code that makes many objects without reference cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_garbage_collector() -> Iterator[None]:
    """Disable the cycle collector inside a ``with``: among a million JSON objects it would search again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
