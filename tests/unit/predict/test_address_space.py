"""Where segments lie, against the driver of an H100 (results/address_space_1xH100)."""

import csv
from itertools import groupby, takewhile
from pathlib import Path

import pytest

from memlab.core.sizes import MIB
from memlab.predict.allocator.address_space import FIRST_REGION_BYTES, AddressSpace

PLACED = Path(__file__).parents[3] / "results" / "address_space_1xH100" / "placed.csv"
CASES = {
    case: [(row["call"], int(row["mib"]) * MIB, int(row["address"], 16)) for row in rows]
    for case, rows in groupby(csv.DictReader(PLACED.open(encoding="utf-8")), lambda row: row["case"])
}


@pytest.mark.parametrize("case", CASES)
def test_segments_beyond_the_first_region_lie_where_the_driver_places_them(case):
    """The first region is left out: it also holds what CUDA itself has loaded."""
    space = AddressSpace()
    space.take(FIRST_REGION_BYTES)
    beyond = CASES[case][0][2] - FIRST_REGION_BYTES
    until_one_is_freed = takewhile(lambda row: row[0] == "allocate", CASES[case])
    distances = [measured - space.take(nbytes) for _, nbytes, measured in until_one_is_freed if measured < beyond]
    assert len(set(distances)) <= 1  # 60 segments of 2 MiB lie in the first region


def test_a_recorded_segment_lies_in_no_region():
    space = AddressSpace()
    first = space.take(20 * MIB)
    space.give_back(0x7F00_0000_0000, 20 * MIB)
    assert space.take(20 * MIB) == first + 20 * MIB


def test_a_region_without_segments_is_given_up_and_one_with_room_is_used_again():
    space = AddressSpace()
    space.take(FIRST_REGION_BYTES)
    regions = [space.take(32 * MIB) for _ in range(3)]
    assert regions == sorted(regions, reverse=True)
    large = space.take(34 * MIB)
    small = space.take(20 * MIB)
    assert small == large + 34 * MIB
    space.give_back(regions[1], 32 * MIB)
    assert space.take(32 * MIB) == large - 32 * MIB
    space.give_back(small, 20 * MIB)
    assert space.take(30 * MIB) == small
