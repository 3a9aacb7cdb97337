"""Data of the page of explained runs: what is packed comes back, and every figure is the explanation's."""

import base64
import zlib
from itertools import accumulate

import pytest

from memlab.report.explain_page.packing import packed, steps


def unpacked(column) -> list[int]:
    planes, rows = column["planes"], zlib.decompress(base64.b64decode(column["data"]))
    count = len(rows) // planes
    return [sum(rows[plane * count + at] << 8 * plane for plane in range(planes)) for at in range(count)]


@pytest.mark.parametrize("values", [[], [0], [0, 255], [256, 1, 0], [2**53 - 1, 2**40 + 7], [*range(0, 9_000, 7)]])
def test_what_is_packed_comes_back(values):
    column = packed(values)
    assert unpacked(column) == values
    assert column["planes"] == max(1, (max(values, default=0).bit_length() + 7) // 8)


def test_steps_add_up_to_the_values():
    values = [3, 3, 8, 1000]
    assert list(accumulate(steps(values))) == values and steps([]) == []
