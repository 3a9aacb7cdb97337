"""Safe reader of JSON files that other programs may have written, and writer of JSON files without secrets.

The reader reads only regular files of limited size. In the values that it returns, nesting is limited, numbers are
finite, integers have at most 64 bits, and text is valid Unicode.
"""

import errno
import json
import math
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any

from memlab.core.errors import RecordError
from memlab.core.sizes import MIB
from memlab.files.disk import explained, write_whole
from memlab.files.redaction import known_secrets, redact_values

LARGEST = 64 * MIB
"""Largest file that is read, in bytes. A record of 64 GPUs with 1,000 steps has 2 MB; no file of memlab is larger."""

DEEPEST = 32
"""Most levels of lists and dictionaries inside one another. A predicted record has 7."""

_NOT_PLAIN = "not a regular file (links are not followed)"

_SCALARS = frozenset({str, int, float, bool, type(None)})

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""A UTF-16 surrogate escape. JSON may write a character beyond 16 bits as a pair of surrogates."""


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises :class:`RecordError`, with the reason, unless it is JSON within the limits above."""
    try:
        with explained(RecordError, path):
            content = _read(path)
        text = content.decode()
        values = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole, parse_float=_finite)
        _check_depth([values])
        if _HALF.search(text):
            json.dumps(values, ensure_ascii=False).encode()  # raises ValueError for a lone surrogate: not writable
    except RecursionError:
        raise RecordError(f"{path}: unreadable (nested too deeply)") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number of 4,300 digits
        raise RecordError(f"{path}: unreadable ({error})") from error
    return values


def _read(path: Path) -> bytes:
    """Read a regular file. Refuse anything else: a read from a pipe could wait for ever."""
    try:
        with open(path, "rb", opener=_open_itself) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise RecordError(f"{path}: {_NOT_PLAIN}")
            if facts.st_size > LARGEST:
                raise RecordError(f"{path}: too large ({facts.st_size:,} bytes; the limit is {LARGEST:,})")
            return file.read(facts.st_size)
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RecordError(f"{path}: {_NOT_PLAIN}") from None
        raise


def _open_itself(path: str, flags: int) -> int:
    """Open a file without following a link, and without waiting for a writer of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _whole(text: str) -> int | float:
    """Parse a whole number: an int if it fits 64 bits, otherwise a float."""
    value = int(text)
    return value if -(2**63) <= value < 2**63 else _finite(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _check_depth(values: Collection[Any], left: int = DEEPEST) -> None:
    """Raise ValueError if lists and dictionaries in ``values`` are nested more than ``left`` levels deep."""
    if _SCALARS.issuperset(map(type, values)):
        return
    if not left:
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    for value in values:
        if isinstance(value, list):
            _check_depth(value, left - 1)
        elif isinstance(value, dict):
            _check_depth(value.values(), left - 1)


def write_json(path: Path, values: Any) -> None:
    """Write ``values`` as JSON, whole or not at all. Secrets are blanked out."""
    text = json.dumps(redact_values(values, known_secrets()), indent=2, allow_nan=False) + "\n"
    write_whole(path, text.encode())
