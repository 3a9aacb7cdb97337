"""Text that is safe to print: it cannot control the terminal."""

from typing import Any


def safe(value: Any) -> str:
    """Convert ``value`` to one line. A mark replaces each unprintable character (escape, line end, bidi mark).

    Use it for all text that memlab did not write itself: from records, imported tables, folder names, errors of
    libraries. Rich's markup stays as it is: print with ``markup=False``, or as a ``rich.text.Text``.
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value))
