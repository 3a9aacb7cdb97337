"""Blocks of device memory and the pools that hold the free ones."""

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment. ``prev`` and ``next``: its neighbours in the segment. ``mapped``: false for address space
    without memory."""

    address: int
    size: int
    pool: "Pool"
    base: int | None = None  # start address of its expandable segment; None: in a segment of fixed size
    mapped: bool = True
    allocated: bool = False
    prev: "Block | None" = None
    next: "Block | None" = None
    streams: frozenset[int] = frozenset()  # side streams that use it
    waiting: bool = False  # freed, but a side stream may still use it
    freed_at: int = 0  # the pool's count of searches when it was freed: gives its age to the garbage collector

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    @property
    def is_free(self) -> bool:
        return not (self.allocated or self.waiting)

    @property
    def expandable_bytes(self) -> int:
        """Bytes that the block can grow to, with the unmapped address space behind it."""
        behind = self.next
        return self.size + (behind.size if behind is not None and not behind.mapped else 0)

    def split(self, size: int) -> "Block":
        """Keep the first ``size`` bytes. Return the rest as a block of its own."""
        behind = self.next
        rest = Block(self.address + size, self.size - size, self.pool, self.base, self.mapped, prev=self, next=behind)
        if behind is not None:
            behind.prev = rest
        self.size, self.next = size, rest
        return rest


class _Sorted:
    """Blocks sorted by size and address, or by address alone, with the operations of a C++ set. ``entries``: size (or
    0), address and block of each."""

    def __init__(self, by_size: bool):
        self._by_size = by_size
        self.entries: list[tuple[int, int, Block]] = []

    def __iter__(self) -> Iterator[Block]:
        return iter([entry[2] for entry in self.entries])

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Block:
        return self.entries[index][2]

    def add(self, block: Block) -> None:
        bisect.insort(self.entries, (block.size if self._by_size else 0, block.address, block))

    def remove(self, block: Block) -> None:
        del self.entries[bisect.bisect_left(self.entries, (block.size if self._by_size else 0, block.address))]

    def first_at_least(self, size: int) -> int:
        return bisect.bisect_left(self.entries, (size,))


class Pool:
    """The free blocks of one stream: either the small ones (at most 1 MiB) or the large ones."""

    def __init__(self, stream: int, small: bool):
        self.stream = stream
        self.small = small
        self.free = _Sorted(by_size=True)
        self.unmapped = _Sorted(by_size=False)
        self.searches = 0

    def merge(self, block: Block, other: Block | None) -> None:
        """Merge the neighbour ``other`` into ``block`` if ``other`` is free, and both are mapped or both unmapped."""
        if other is None or other.allocated or other.waiting or other.mapped != block.mapped:
            return
        (self.free if other.mapped else self.unmapped).remove(other)
        if block.prev is other:
            block.address = other.address
            block.prev = other.prev
            if block.prev is not None:
                block.prev.next = block
        else:
            block.next = other.next
            if block.next is not None:
                block.next.prev = block
        block.size += other.size

    def give_back(self, block: Block) -> None:
        """Merge the freed ``block`` with its free neighbours and add it to the free blocks."""
        if block.prev is not None:
            self.merge(block, block.prev)
        if block.next is not None:
            self.merge(block, block.next)
        block.freed_at = self.searches
        self.free.add(block)


class ExpandableSegments:
    """The expandable segments of a device. ``reserve``: requests the first bytes of a block from the device and returns
    whether it has them; ``release``: gives a block back."""

    def __init__(self, address_space: int, page: Callable[[Pool], int], reserve: Callable[[Block, int], bool], release):
        self._address_space = address_space  # of one segment
        self._page = page
        self._reserve = reserve
        self._release = release
        self._next_address = 1 << 50  # far from the segments of fixed size

    def allocate(self, pool: Pool, size: int) -> Block | None:
        """Take a mapped block of at least ``size`` bytes out of the pool, mapping pages as needed. ``None`` when the
        device has no memory left. No segment has more addresses than the device has memory for."""
        if size > self._address_space:
            return None
        block = self._find(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            behind = block.next
            if behind is None or not self._map(behind, min(size - block.size, behind.size)):
                return None
            block = behind
        pool.free.remove(block)
        return block

    def unmap(self, block: Block) -> None:
        """Give the whole pages of a free block back to the device."""
        pool, (start, end) = block.pool, self.whole_pages(block)
        if end <= start:
            return
        pool.free.remove(block)
        if end < block.address + block.size:
            pool.free.add(block.split(end - block.address))
        if start > block.address:
            middle = block.split(start - block.address)
            pool.free.add(block)
            block = middle
        block.mapped = False
        self._release(block)
        pool.merge(block, block.prev)
        pool.merge(block, block.next)
        pool.unmapped.add(block)

    def whole_pages(self, block: Block) -> tuple[int, int]:
        """Return where the first whole page of a block starts and the last one ends; there is none if that is no
        range."""
        page, base = self._page(block.pool), block.base or 0
        start = base + -(-(block.address - base) // page) * page
        return start, base + (block.address + block.size - base) // page * page

    def _find(self, pool: Pool, size: int) -> Block:
        """Return the first block of the run of free and unmapped blocks that has room and lies lowest, or of a new
        segment if none has room."""
        for block in pool.unmapped:
            start = block.prev if block.prev is not None and block.prev.is_free else block
            if _has_room(start, size):
                return start
        page = self._page(pool)
        segment_bytes = -(-self._address_space // page) * page
        block = Block(self._next_address, segment_bytes, pool, base=self._next_address, mapped=False)
        self._next_address += 2 * segment_bytes
        pool.unmapped.add(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map the pages that the first ``size`` bytes of an unmapped block need, and merge it with its neighbours."""
        pool, page, base = block.pool, self._page(block.pool), block.base or 0
        end = base + -(-(block.address + size - base) // page) * page
        size = min(end - block.address, block.size)
        if not self._reserve(block, size):
            return False
        pool.unmapped.remove(block)
        if size < block.size:
            pool.unmapped.add(block.split(size))
        block.mapped = True
        pool.merge(block, block.prev)
        pool.merge(block, block.next)
        pool.free.add(block)
        return True


def _has_room(block: Block | None, size: int) -> bool:
    room = 0
    while room < size and block is not None and block.is_free:
        room += block.size
        block = block.next
    return room >= size
