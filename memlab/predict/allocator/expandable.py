"""Expandable segments: address space in which pages are mapped and unmapped (``expandable_segments:True``)."""

from collections.abc import Callable

from memlab.predict.allocator.blocks import Block, Pool


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
        device has no memory left."""
        block = self._find(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            behind = block.next
            if not self._map(behind, min(size - block.size, behind.size)):
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
        page = self._page(block.pool)
        start = block.base + -(-(block.address - block.base) // page) * page
        return start, block.base + (block.address + block.size - block.base) // page * page

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
        pool, page = block.pool, self._page(block.pool)
        end = block.base + -(-(block.address + size - block.base) // page) * page
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
