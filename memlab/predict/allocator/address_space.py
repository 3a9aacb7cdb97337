"""Where the driver places segments: of free blocks of equal size, the allocator takes the one with the lowest address.

The driver reserves regions of address space, each below all before it and a multiple of 32 MiB long. An allocation gets
the lowest place with room in a region, else a region of its own. A process begins with a region of 416 MiB. Measured on
an H100 with driver 580.159: results/address_space_1xH100.
"""

from bisect import insort

from memlab.core.sizes import MIB

REGION_BYTES = 32 * MIB
FIRST_REGION_BYTES = 416 * MIB

_TOP = 1 << 52  # above real addresses; JavaScript holds them exactly


class AddressSpace:
    """Address space of a process on one device.

    ``_regions``: begin -> end, the lowest last. ``_rooms``: region, begin and end of what is free, the lowest first.
    """

    def __init__(self) -> None:
        self._regions: dict[int, int] = {}
        self._rooms: list[tuple[int, int, int]] = []
        self._lowest = _TOP
        self._add_region(FIRST_REGION_BYTES)

    def take(self, nbytes: int) -> int:
        """Return the address of a new segment."""
        fitting = (room for room in self._rooms if room[2] - room[1] >= nbytes)
        room = next(fitting, None) or self._add_region(-(-nbytes // REGION_BYTES) * REGION_BYTES)
        region, begin, end = room
        self._rooms.remove(room)
        if end - begin > nbytes:
            insort(self._rooms, (region, begin + nbytes, end))
        return begin

    def give_back(self, address: int, nbytes: int) -> None:
        """Free a segment. The driver gives up a region without segments.

        It can reserve a smaller one in its place later, as in one of the six cases; here a new one lies below all.
        """
        region = next((begin for begin in reversed(self._regions) if begin <= address < self._regions[begin]), None)
        if region is None:
            return  # where a recorded one lay
        begin, end = address, address + nbytes
        for room in [room for room in self._rooms if room[0] == region and (room[1] == end or room[2] == begin)]:
            self._rooms.remove(room)
            begin, end = min(begin, room[1]), max(end, room[2])
        if (begin, end) == (region, self._regions[region]):
            del self._regions[region]
        else:
            insort(self._rooms, (region, begin, end))

    def _add_region(self, nbytes: int) -> tuple[int, int, int]:
        """Return the room of a new region."""
        self._regions[self._lowest - nbytes] = self._lowest
        self._lowest -= nbytes
        room = self._lowest, self._lowest, self._lowest + nbytes
        insort(self._rooms, room)
        return room
