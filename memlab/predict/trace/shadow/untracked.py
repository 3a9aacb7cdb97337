"""Python's garbage collector, kept off the events and the work of a trace: millions of tuples without cycles."""

import ctypes
import gc
from collections import deque
from typing import Any

_untrack = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))


class Untracked:
    """Takes the elements of lists, tuples of numbers, off the collector before it looks at older objects: of a million
    of them it would visit each again and again. The lists only grow, or are cleared."""

    def __init__(self, *lists: list[Any]):
        self._lists = [(each, [0]) for each in lists]
        gc.callbacks.append(self._collection_begins)

    def _collection_begins(self, phase: str, info: dict[str, int]) -> None:
        if phase != "start" or not info["generation"]:
            return
        for elements, done in self._lists:
            begin = done[0] if done[0] <= len(elements) else 0
            deque(map(_untrack, elements[begin:]), maxlen=0)
            done[0] = len(elements)
