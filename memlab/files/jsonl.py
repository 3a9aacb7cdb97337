"""Check of a JSONL data file (one JSON object a line); an error names the bad line."""

import json
from collections.abc import Iterator
from pathlib import Path

from memlab.core.errors import ConfigError, nearest
from memlab.files.disk import explained


def check(path: Path, text_field: str, most_bytes: int | None = None) -> None:
    """Raise :class:`ConfigError`, with file and line, unless each line is an object with a text under ``text_field``.

    ``most_bytes``: stop after about this many bytes of the file; ``None``: read all of it. Empty lines are skipped.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise ConfigError(f"data.path={path}: not a file. Name a file with one JSON object a line.")
    rows = 0
    with explained(ConfigError, path, "data.path="), path.open("rb") as file:
        for number, line in _lines(file, most_bytes):
            rows += _is_row(line, text_field, f"{path}:{number}")
    if not rows:
        raise ConfigError(f"data.path={path}: the file is empty. Write one JSON object a line into it.")


def _lines(file, most_bytes: int | None) -> Iterator[tuple[int, bytes]]:
    read = 0
    for number, line in enumerate(file, 1):
        yield number, line
        read += len(line)
        if most_bytes is not None and read > most_bytes:
            return


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
