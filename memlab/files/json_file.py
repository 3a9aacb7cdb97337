"""Safe reader of JSON files that other programs may have written, and writer of JSON files without secrets.

The reader reads only regular files of limited size. In the values that it returns, nesting is limited, numbers are
finite, integers have at most 64 bits, and text is valid Unicode. A JSONL data file (one JSON object a line) is only
checked; an error names the bad line.
"""

import json
import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from memlab.core.errors import ConfigError, RecordError, nearest
from memlab.core.sizes import MIB
from memlab.files.disk import explain, explained, write_whole
from memlab.files.redaction import known_secrets, redact_values
from memlab.files.regular_file import read_regular


def check(path: Path, text_field: str, most_bytes: int | None = None) -> None:
    """Raise :class:`ConfigError`, with file and line, unless each line is an object with a text under ``text_field``.

    ``most_bytes``: stop after about this many bytes of the file; ``None``: read all of it. Empty lines are skipped.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise ConfigError(f"data.path={path}: not a file. Name a file with one JSON object a line.")
    rows = read = 0
    with explained(ConfigError, path, "data.path="), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            rows += _is_row(line, text_field, f"{path}:{number}")
            read += len(line)
            if most_bytes is not None and read > most_bytes:
                break
    if not rows:
        raise ConfigError(f"data.path={path}: the file is empty. Write one JSON object a line into it.")


def _is_row(line: bytes, text_field: str, where: str) -> bool:
    """Check one line: False for an empty line, True for a row. Raises :class:`ConfigError` for anything else."""
    try:
        text = line.decode("utf-8-sig")
        row = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        what = getattr(error, "msg", error)  # msg lacks json's line number, which is always 1
        raise ConfigError(f"{where}: not a JSON object ({what}). Write one JSON object a line.") from error
    if row is None and not text.strip():
        return False
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: {type(row).__name__}, not a JSON object. Write one JSON object a line.")
    if text_field not in row:
        raise ConfigError(f"{where}: no field '{text_field}'. {nearest(text_field, row)} Set data.text_field=...")
    if not isinstance(row[text_field], str):
        raise ConfigError(f"{where}: the field '{text_field}' holds {json.dumps(row[text_field])[:80]}, not a text.")
    return True


LARGEST = 64 * MIB
"""Largest file that is read, in bytes. A record of 64 GPUs with 1,000 steps has 2 MB; no file of memlab is larger."""

DEEPEST = 32
"""Most levels of lists and dictionaries inside one another. A predicted record has 7."""

_SCALARS = frozenset({str, int, float, bool, type(None)})

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""A UTF-16 surrogate escape. JSON may write a character beyond 16 bits as a pair of surrogates."""


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises :class:`RecordError`, with the reason, unless it is JSON within the limits above."""
    try:
        text = read_regular(path, LARGEST).decode()
        values = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole, parse_float=_finite)
        _check_depth([values])
        if _HALF.search(text):
            json.dumps(values, ensure_ascii=False).encode()  # raises ValueError for a lone surrogate: not writable
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file") from None
    except OSError as error:
        raise RecordError(explain(error, path)) from error
    except RecursionError:
        raise RecordError(f"{path}: unreadable (nested too deeply)") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number of 4,300 digits
        raise RecordError(f"{path}: unreadable ({error})") from error
    return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _whole(text: str) -> int | float:
    """Parse a whole number: an int if it fits 64 bits, otherwise a float."""
    value = int(text)
    return value if -(2**63) <= value < 2**63 else _finite(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
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


def write_json(path: Path, values: Any, write: Callable[[Path, bytes], None] = write_whole) -> None:
    """Write ``values`` as JSON, whole or not at all. Secrets are blanked out.

    ``write``: :func:`write_output` for a path that the user named.
    """
    text = json.dumps(redact_values(values, known_secrets()), indent=2, allow_nan=False) + "\n"
    write(path, text.encode())
