"""Values of any kind as plain JSON values, without what their names say are secrets."""

import math
import re
from collections.abc import Mapping
from typing import Any

from ..files.redaction import BLANK

_SECRET_NAME = re.compile(r"token$|secret|passw(or)?d|passphrase|api_?key|access_key|credential", re.IGNORECASE)
_SPECIAL_TOKEN = re.compile(r"(^|_)(bos|eos|pad|unk|sep|cls|mask|image|video|audio|boi|eoi)_token$", re.IGNORECASE)
"""Tokens of a vocabulary: no secrets."""

DEEPEST = 12
"""Depth from which values are given as text: some objects hold themselves."""


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value that JSON can hold: numbers that are not finite become ``None``, other objects their text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == DEEPEST:
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _of_name(str(name), each, depth) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each, depth + 1) for each in value]
    return str(value)


def _of_name(name: str, value: Any, depth: int) -> Any:
    secret = isinstance(value, str) and _SECRET_NAME.search(name) and not _SPECIAL_TOKEN.search(name)
    return BLANK if secret else plain(value, depth + 1)
