"""Failures of memlab's own code inside a command: noted for the rank's file, never raised into the script."""

import functools
from collections.abc import Callable

noted: list[str] = []


def note(place: str, error: Exception) -> None:
    """Note a failure once."""
    text = f"{place}: {type(error).__name__}: {error}"
    if text not in noted:
        noted.append(text)


def contained(function: Callable) -> Callable:
    """Wrap a function of the meters: an exception in it is noted, and the call returns ``None``."""

    @functools.wraps(function)
    def harmless(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            note(function.__qualname__, error)

    return harmless
