"""A rule of unsupported combinations: when it matches, why, and what to use instead."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memlab.core.config import Config


@dataclass(frozen=True)
class Rule:
    when: Callable[[Config], bool]
    why: str
    instead: str


def changed(values: Any, defaults: Any, but: tuple[str, ...] = ()) -> list[str]:
    """List the fields whose values differ from the defaults, except the fields in ``but``."""
    names = [field.name for field in dataclasses.fields(values) if field.name not in but]
    return [name for name in names if getattr(values, name) != getattr(defaults, name)]
