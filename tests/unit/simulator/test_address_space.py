"""Where segments lie, against the driver of an H100 (results/address_space_1xH100)."""

import csv
from itertools import groupby
from pathlib import Path

import pytest

from memlab.core.sizes import MIB
from memlab.simulator.allocator.address_space import FIRST_REGIONS, AddressSpace

RESULTS = Path(__file__).parents[3] / "results" / "address_space_1xH100"
CASES = {
    f"{name} {case}": [(row["call"], int(row["mib"]) * MIB, int(row["address"], 16)) for row in rows]
    for name in ("placed", "frees")
    for case, rows in groupby(csv.DictReader((RESULTS / f"{name}.csv").open(encoding="utf-8")), lambda row: row["case"])
}


@pytest.mark.parametrize("case", CASES)
def test_segments_lie_in_the_order_in_which_the_driver_places_them(case):
    space = AddressSpace()
    held: dict[int, int] = {}  # measured address -> the one here
    for call, nbytes, measured in CASES[case]:
        if call == "free":
            space.give_back(held.pop(measured), nbytes)
            continue
        address = space.take(nbytes)
        assert [measured < other for other in held] == [address < other for other in held.values()]
        held[measured] = address


def test_a_recorded_segment_lies_in_no_region():
    space = AddressSpace()
    first = space.take(20 * MIB)
    space.give_back(0x7F00_0000_0000, 20 * MIB)
    assert space.take(20 * MIB) == first + 20 * MIB


def test_a_region_without_segments_is_given_up_and_a_larger_gap_is_used_again():
    space = AddressSpace()
    for nbytes in FIRST_REGIONS[::-1]:
        space.take(nbytes)
    regions = [space.take(32 * MIB) for _ in range(4)]
    assert regions == sorted(regions, reverse=True)
    space.give_back(regions[1], 32 * MIB)
    lowest = space.take(32 * MIB)
    assert lowest == regions[3] - 32 * MIB  # the gap is not larger than the region
    space.give_back(regions[2], 32 * MIB)
    assert space.take(32 * MIB) == regions[1]  # the upper end of the gap of both
