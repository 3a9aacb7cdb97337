"""Groups of values that share a key."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Return key -> its values, both in the order of ``values``."""
    found: dict[Key, list[Value]] = defaultdict(list)
    for value in values:
        found[key(value)].append(value)
    return dict(found)
