"""Text for a terminal: printed, never obeyed."""

from typing import Any


def safe(value: Any) -> str:
    """``value`` as one line of printable characters: every other one (escape, line end, bidi mark) becomes a mark.

    For every text that memlab did not write itself: of a record, an imported table, a folder's name, an error of a
    library. Rich's markup is left as it is: print with ``markup=False``, or as a ``rich.text.Text``.
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value))
