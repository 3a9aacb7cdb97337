"""Python's garbage collector passes over the events, sites and work of a trace: millions of objects in no cycle."""

import ctypes
import gc
from collections import deque
from typing import Any

_untrack = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))


class Untracked:
    """Hides the elements of lists from the garbage collector, before each collection of more than the newest objects.

    The elements must be in no reference cycle. When a list is cut, some of its later elements stay visible, which only
    takes time.
    """

    def __init__(self, *lists: list[Any]):
        self._lists, self._hidden = lists, [0] * len(lists)
        gc.callbacks.append(self._collection_begins)

    def _collection_begins(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"]:
            for number, elements in enumerate(self._lists):
                begin = self._hidden[number] if self._hidden[number] <= len(elements) else 0
                deque(map(_untrack, elements[begin:]), maxlen=0)
                self._hidden[number] = len(elements)
