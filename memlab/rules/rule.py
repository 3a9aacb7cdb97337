"""A rule of unsupported combinations: when it matches, why, and what to use instead."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from memlab.core.config import Config


@dataclass(frozen=True)
class Rule:
    when: Callable[[Config], object]  # the rule matches if the result is true
    why: str
    instead: str


def broken(config: Config, rules: Iterable[Rule]) -> list[str]:
    """Return the reasons of the rules that match."""
    return [f"{rule.why}; instead: {rule.instead}" for rule in rules if rule.when(config)]


def changed(values: Any, but: tuple[str, ...] = (), defaults: Any = None) -> list[str]:
    """List the fields of a group whose values differ from ``defaults``, except the fields in ``but``.

    ``defaults``: by default those of the group's type.
    """
    usual = vars(defaults or type(values)())
    return [name for name, value in vars(values).items() if name not in but and value != usual[name]]


def has_changed(values: Any, *names: str) -> bool:
    """Whether one of these fields of a group differs from its default."""
    return not set(names).isdisjoint(changed(values))
