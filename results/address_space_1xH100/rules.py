"""Rules by which the driver places allocations, checked with placed.csv and frees.csv: ``python rules.py``.

The driver reserves regions of address space, a multiple of 32 MiB long. An allocation gets a place in the newest region
with room, there in the smallest room, else a region of its own. A region without allocations is given up. A new region
lies at the upper end of the highest gap that is larger than it, else below all others. A process begins with three
regions, which stay. With these rules every one of the 2,305 allocations lies above and below the same others as on the
H100.

memlab/predict/allocator/address_space.py knows less: it uses no gap, takes the lowest room, and has one first region. A
training is no bare driver: CUDA's own memory, of kernels that are loaded late, comes to lie in regions with room, which
are then not given up. Replays of results/ are nearer to their measurement if such a region stays (of 47 points whose
reserved memory depends on the places, 24 in place of 19 are exact). That has to be measured before it is used.
"""

import csv
from itertools import groupby
from pathlib import Path

MIB = 2**20
REGION_BYTES = 32 * MIB
FIRST_REGIONS = (22 * MIB, 414 * MIB, 6 * MIB)
"""Room in the regions that a process has from the beginning, the oldest and highest first."""

_TOP = 1 << 52


class AddressSpace:
    """Address space of a process on one device.

    ``_ends``: begin of a region -> its end. ``_rooms``: begin of a region -> begin -> end of what is free in it. Both
    have the newest region last.
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._rooms: dict[int, dict[int, int]] = {}
        self._lowest_first = _TOP
        for nbytes in FIRST_REGIONS:
            self._add_region(self._lowest_first - nbytes, nbytes)
            self._lowest_first -= nbytes

    def take(self, nbytes: int) -> int:
        """Return the address of a new segment."""
        for rooms in reversed(self._rooms.values()):
            if fitting := [(end - begin, begin) for begin, end in rooms.items() if end - begin >= nbytes]:
                _, address = min(fitting)
                break
        else:
            rooms = self._new_region(-(-nbytes // REGION_BYTES) * REGION_BYTES)
            (address,) = rooms
        end = rooms.pop(address)
        if address + nbytes < end:
            rooms[address + nbytes] = end
        return address

    def give_back(self, address: int, nbytes: int) -> None:
        """Free a segment."""
        region = next((begin for begin, end in self._ends.items() if begin <= address < end), None)
        if region is None:
            return  # where a recorded one lay
        rooms, end = self._rooms[region], address + nbytes
        end = rooms.pop(end, end)
        begin = next((begin for begin, its_end in rooms.items() if its_end == address), address)
        rooms[begin] = end
        if (begin, end) == (region, self._ends[region]) and region < self._lowest_first:
            del self._ends[region], self._rooms[region]

    def _new_region(self, nbytes: int) -> dict[int, int]:
        """Return the room in a new region."""
        above = self._lowest_first
        for begin in sorted((begin for begin in self._ends if begin < above), reverse=True):
            if above - self._ends[begin] > nbytes:
                break
            above = begin
        return self._add_region(above - nbytes, nbytes)

    def _add_region(self, begin: int, nbytes: int) -> dict[int, int]:
        self._ends[begin] = begin + nbytes
        self._rooms[begin] = {begin: begin + nbytes}
        return self._rooms[begin]


def main() -> None:
    for name in ("placed.csv", "frees.csv"):
        rows = csv.DictReader((Path(__file__).parent / name).open(encoding="utf-8"))
        equal = total = 0
        for _, calls in groupby(rows, lambda row: row["case"]):
            space, held = AddressSpace(), {}  # measured address -> the one here
            for row in calls:
                nbytes, measured = int(row["mib"]) * MIB, int(row["address"], 16)
                if row["call"] == "free":
                    space.give_back(held.pop(measured), nbytes)
                    continue
                address = space.take(nbytes)
                equal += all((measured < other) == (address < its) for other, its in held.items())
                total += 1
                held[measured] = address
        print(f"{name}: {equal} of {total} allocations in the measured order")


if __name__ == "__main__":
    main()
