"""Reader of pickle files that hold plain data only. It imports nothing, calls nothing, and builds no object of a class.

The standard library's unpickler runs what a file tells it to run. This reader knows the instructions that build
dictionaries, lists, tuples, text, numbers, booleans and None, as protocol 4 and later write them, and refuses all
others. It also refuses a file with more lists and dictionaries than its size explains. So reading takes at most some 30
times the size of the file in memory; torch's memory history takes six times.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memlab.core.errors import RecordError
from memlab.files.disk import explained
from memlab.files.regular_file import read_regular

_PLAIN = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.BINFLOAT, pickle.SHORT_BINUNICODE, pickle.BINUNICODE),
    *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
)
"""Instructions that are followed. PUT and its relatives, which protocol 4 replaced by MEMOIZE, are not among them: with
them a file of ten bytes can make the reader reserve gigabytes."""

_BUILDING = (
    *(pickle.MARK, pickle.MEMOIZE, pickle.EMPTY_DICT, pickle.EMPTY_LIST),
    *(pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
)
"""Instructions of one byte that take some 50 to 100 bytes of memory."""

BYTES_TO_BUILD = 8
"""Least average size of what a file says for each of these instructions. In torch's memory histories it is 28 bytes."""

SMALL_FILE = 1000
"""Such instructions that are followed in a file of any size."""


class _NotPlain(Exception):
    """The file holds something else than plain data. The message says what."""


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle file. Raises :class:`RecordError`, with the reason, unless it holds plain data alone.

    Dictionaries in it have text or whole numbers as keys. A list or a dictionary can occur in several places, also
    within itself: a caller that walks through the values must follow the structure that it expects.
    """
    with explained(RecordError, path):
        content = read_regular(path)
    try:
        return _PlainUnpickler(content).load()
    except EOFError:
        raise RecordError(f"{path}: unreadable as a pickle file (it ends too early)") from None
    except _NotPlain as error:
        raise RecordError(f"{path}: unreadable ({error}): only plain data is read, and nothing is executed") from None
    except Exception as error:  # damaged content fails in as many ways as there are instructions
        raise RecordError(f"{path}: unreadable as a pickle file ({type(error).__name__}: {error})") from None


class _Dispatch(dict[int, Any]):
    def __missing__(self, instruction: int) -> Any:
        raise _NotPlain(f"instruction {bytes([instruction])!r}")


def _counted(load: Callable[[Any], None]) -> Callable[["_PlainUnpickler"], None]:
    def counted(self: "_PlainUnpickler") -> None:
        self.left -= 1
        if self.left < 0:
            raise _NotPlain("more lists and dictionaries than a file of this size has")
        load(self)

    return counted


class _PlainUnpickler(pickle._Unpickler):
    """The standard library's own unpickler in Python, which looks its instructions up in a table: here a short one.

    ``left``: how many more of the :data:`_BUILDING` instructions are followed.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    dispatch = _Dispatch({code[0]: pickle._Unpickler.dispatch[code[0]] for code in _PLAIN})
    dispatch.update({code[0]: _counted(pickle._Unpickler.dispatch[code[0]]) for code in _BUILDING})

    def __init__(self, content: bytes):
        super().__init__(io.BytesIO(content))
        self.left = max(SMALL_FILE, len(content) // BYTES_TO_BUILD)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self) -> None:
        self._set(self.pop_mark())

    def _set(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        if type(target) is not dict or not all(type(key) in (str, int) for key in keys):
            # the hash of a deeply nested tuple would overflow the interpreter's stack
            raise _NotPlain("a dictionary with keys that are neither text nor whole numbers")
        target.update(zip(keys, items[1::2], strict=True))

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
