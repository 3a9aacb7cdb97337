"""Files that a command read, as its ranks found them: if one of them changed, the command is another experiment."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memlab.core.record import Record


def are_unchanged(record: Record) -> bool:
    """Whether the script's own modules have the same content, and its data files the same size, as in the record.

    Files that a record does not name (older records, data that the script reads by itself) are not looked at.
    """
    facts: Mapping[str, Any] = next((rank["attached"] for rank in record.ranks if rank.get("attached")), {})
    folder = Path((facts.get("script") or {}).get("cwd") or ".")
    modules = (facts.get("modules") or {}).items()
    files = [each for each in facts.get("datasets") or () if "path" in each]
    same_code = all(_digest(folder / path) == digest for path, digest in modules)
    return same_code and all(_size(folder / each["path"]) == each["bytes"] for each in files)


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
