"""Packing of long columns of whole numbers: byte planes, compressed, as text. The page unpacks them (history.js)."""

import base64
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

MOST_BYTES = 7
"""Bytes of the largest value: JavaScript's numbers hold whole numbers below 2**53."""


def packed(values: Sequence[int]) -> dict[str, Any]:
    """Pack whole numbers from 0 to 2**53 - 1.

    ``planes``: how many bytes each value has; ``data``: base64 of a zlib stream with the lowest byte of each value,
    then the next byte of each, and so on. Neighbours in a plane are alike, so they compress well.
    """
    width = max(1, -(-max(values, default=0).bit_length() // 8))
    assert width <= MOST_BYTES
    rows = b"".join(value.to_bytes(width, "little") for value in values)
    planes = b"".join(rows[place::width] for place in range(width))
    return {"planes": width, "data": base64.b64encode(zlib.compress(planes, 6)).decode()}


def steps(values: Sequence[int]) -> list[int]:
    """Return the first value and the increases from each value to the next, of values that never decrease."""
    return [*values[:1], *(after - before for before, after in pairwise(values))]
