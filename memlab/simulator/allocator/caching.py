"""Model of PyTorch's CUDA caching allocator: which requests make ``reserved`` grow, and when memory runs out.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` of PyTorch 2.11 to 2.13, with its names.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from memlab.core.sizes import MIB, UNLIMITED
from memlab.simulator.allocator.address_space import AddressSpace
from memlab.simulator.allocator.blocks import Block, ExpandableSegments, Pool
from memlab.simulator.allocator.options import MIN_BLOCK_BYTES, Options

SMALL_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MIN_LARGE_BYTES = 10 * MIB
ROUND_LARGE_BYTES = 2 * MIB


class OutOfMemory(Exception):
    """The device has no room for a request of ``requested_bytes``."""

    def __init__(self, requested_bytes: int):
        super().__init__(f"no room for {requested_bytes} bytes")
        self.requested_bytes = requested_bytes


class Before(NamedTuple):
    """What the real allocator held when a recording began. ``segments``, of fixed size: address, bytes and stream of
    each. ``places``: key of a block in use -> its address."""

    segments: Sequence[tuple[int, int, int]] = ()
    places: Mapping[int, int] = MappingProxyType({})


class CachingAllocator:
    """Caching allocator of a device with ``capacity`` bytes, or with the share of the device that
    ``per_process_memory_fraction`` allows.

    A freed block that a side stream used can be reused when that stream has caught up. ``release_delay`` is the
    default number of further requests until then (0: at once). A delay given to ``free`` replaces the default; a wait
    of the host ends the delay early.
    """

    def __init__(
        self,
        options: Options = Options(),  # noqa: B008
        capacity: int = UNLIMITED,
        release_delay: int = 0,
        addresses: Mapping[int, Sequence[int]] = MappingProxyType({}),
        before: Before = Before(),  # noqa: B008
    ):
        """``addresses``: size of a segment -> where the recorded ones of this size lay, in their order. All further
        segments lie above them. ``before``: the allocator has these segments from the start, and a request for one of
        these keys gets the block at its place."""
        self.options = options
        self.capacity = capacity
        self.release_delay = release_delay
        self.allocated = self.active = self.reserved = 0
        self.peak_allocated = self.peak_active = self.peak_reserved = 0
        self.num_alloc_retries = 0
        self._collects = options.garbage_collection_threshold > 0 and options.memory_fraction < 1
        self._rounded = cache(options.round)  # a step repeats the same sizes
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._live: dict[int, Block | None] = {}
        # Freed blocks by the side streams that used them: (requests when freed, requests when reusable, block).
        self._pending: dict[frozenset[int], deque[tuple[int, int, Block]]] = defaultdict(deque)
        self._requests = 0
        self._recorded = {size: deque(recorded) for size, recorded in addresses.items()}
        self._address_space = AddressSpace()
        self._segments: dict[int, int] = {}  # of fixed size, that the device has given: address -> bytes
        self._places = before.places
        for address, nbytes, stream in before.segments:
            self.reserved += nbytes
            pool = self._pool(stream, nbytes <= SMALL_SEGMENT_BYTES)
            pool.free.add(self._segment(address, nbytes, pool))
        address_space = min(capacity, 1 << 40) * 9 // 8
        self._expandable = ExpandableSegments(address_space, self._segment_bytes, self._map, self._release)

    # --- calls of the program

    def malloc(self, key: int, nbytes: int, stream: int = 0) -> None:
        """Allocate ``nbytes`` for ``key``. A request for 0 bytes gets no block.

        Raises :class:`OutOfMemory` when the device has no room even after the allocator freed its cached segments.
        """
        self._requests += 1
        if not nbytes:
            self._live[key] = None
            return
        if self._pending:
            self._complete(lambda freed, due: due < self._requests)
        size = self._rounded(nbytes)
        pool = self._pool(stream, size <= SMALL_BYTES)
        block = self._at_its_place(key, pool, size) if key in self._places else None
        block = block or self._find_or_allocate(pool, size)
        if block is None:
            raise OutOfMemory(nbytes)
        if self._should_split(block, size):
            pool.free.add(block.split(size))
        block.allocated = True
        self._live[key] = block
        self.allocated += block.size
        self.active += block.size
        self._note_peaks()

    def free(self, key: int, release_delay: int | None = None) -> None:
        """Free the block of ``key``. ``release_delay``: of this block, instead of the allocator's default."""
        if (block := self._live.pop(key)) is None:
            return
        block.allocated = False
        self.allocated -= block.size
        if block.streams:
            due = self._requests + (self.release_delay if release_delay is None else release_delay)
            self._pending[block.streams].append((self._requests, due, block))
            block.streams = frozenset()
            block.waiting = True
        else:
            self._give_back(block)

    def record_stream(self, key: int, stream: int) -> None:
        if (block := self._live[key]) is not None and stream != block.pool.stream:
            block.streams |= {stream}

    def synchronize(self, requests: int | None = None) -> None:
        """Record that the host waited for all work of the first ``requests`` requests, or of all so far: blocks freed
        by then can be reused."""
        until = self._requests if requests is None else requests
        self._complete(lambda freed, due: freed <= until)

    def empty_cache(self) -> None:
        self.synchronize()
        self._release_cached()

    def reset_peaks(self) -> None:
        self.peak_allocated, self.peak_active, self.peak_reserved = self.allocated, self.active, self.reserved

    def layout(self, keys: Iterable[int]) -> tuple:
        """Return where free memory and the blocks of ``keys`` lie. Equal requests lead from equal layouts to
        equal ones."""
        free = tuple((block.address, block.size) for pool in self._pools.values() for block in pool.free)
        waiting = tuple(
            (due - self._requests, block.address) for pending in self._pending.values() for _, due, block in pending
        )
        blocks = [self._live.get(key) for key in keys]  # memory of the host has none
        return self.reserved, free, waiting, tuple(block and block.address for block in blocks)

    def releasable_bytes(self) -> int:
        """Return the bytes that ``empty_cache`` would give back to the device once no side stream uses a free block."""
        free = [block for pool in self._pools.values() for block in pool.free]
        pages = (self._expandable.whole_pages(block) for block in free if block.base is not None)
        segments = sum(block.size for block in free if block.base is None and not block.is_split)
        return segments + sum(max(0, end - start) for start, end in pages)

    # --- finding a block

    def _at_its_place(self, key: int, pool: Pool, size: int) -> Block | None:
        """Take the block out of the pool where it lay when the recording began. ``None``: no free block is there, as in
        an expandable segment."""
        place = self._places[key]
        around = (block for block in pool.free if block.address <= place and place + size <= block.address + block.size)
        if (block := next(around, None)) is None:
            return None
        pool.free.remove(block)
        if block.address < place:
            in_front, block = block, block.split(place - block.address)
            pool.free.add(in_front)
        return block

    def _find_or_allocate(self, pool: Pool, size: int) -> Block | None:
        if (block := self._best_fit(pool, size)) is not None:
            return block
        if self._collects:
            self._collect_garbage()
        block = self._new_segment(pool, size)
        if block is None and self._release_oversized(pool, size):
            block = self._new_segment(pool, size)
        if block is None:
            self.empty_cache()
            self.num_alloc_retries += 1
            block = self._new_segment(pool, size)
        return block

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        pool.searches += 1
        index, entries = pool.free.first_at_least(size), pool.free.entries
        if index == len(entries):
            return None
        block = entries[index][2]
        if block.base is not None:
            index = _least_expandable(pool, index)
            block = entries[index][2]
        limit = self.options.max_split_bytes
        if block.size >= (limit if size < limit else size + self.options.max_non_split_rounding_bytes):
            return None
        del entries[index]
        return block

    def _should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.small or self.options.expandable_segments:
            return rest >= MIN_BLOCK_BYTES
        return size < self.options.max_split_bytes and rest > SMALL_BYTES

    def _new_segment(self, pool: Pool, size: int) -> Block | None:
        if self.options.expandable_segments:
            return self._expandable.allocate(pool, size)
        if pool.small or size < MIN_LARGE_BYTES:
            nbytes = self._segment_bytes(pool)
        else:
            nbytes = -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
        return self._segment(self._address(nbytes), nbytes, pool) if self._reserve(nbytes) else None

    def _segment(self, address: int, nbytes: int, pool: Pool) -> Block:
        self._segments[address] = nbytes
        return Block(address, nbytes, pool)

    def _address(self, nbytes: int) -> int:
        """Return where a new segment lies: where the next recorded one of its size lay, unless another lies there."""
        recorded = self._recorded.get(nbytes)
        if recorded and self._is_vacant(address := recorded.popleft(), nbytes):
            return address
        return self._address_space.take(nbytes)

    def _is_vacant(self, address: int, nbytes: int) -> bool:
        end = address + nbytes
        return all(end <= other or other + size <= address for other, size in self._segments.items())

    # --- giving memory back

    def _give_back(self, block: Block) -> None:
        self.active -= block.size
        block.pool.give_back(block)

    def _complete(self, is_over: Callable[[int, int], bool]) -> None:
        """Make waiting blocks reusable, in the order in which they were freed, as far as ``is_over(requests when freed,
        requests when reusable)`` is true."""
        for pending in self._pending.values():
            while pending and is_over(*pending[0][:2]):
                block = pending.popleft()[2]
                block.waiting = False
                self._give_back(block)

    def _release_cached(self) -> None:
        for pool in self._pools.values():
            for block in pool.free:
                if block.base is not None:
                    self._expandable.unmap(block)
                elif not block.is_split:
                    self._release_segment(block)

    def _release_oversized(self, pool: Pool, size: int) -> bool:
        """Free enough of the blocks that are too large to be split, if ``max_split_size_mb`` is set. Return whether
        enough was freed."""
        if (limit := self.options.max_split_bytes) == Options.max_split_bytes:
            return False
        wanted = max(size, limit)
        if (index := pool.free.first_at_least(wanted)) < len(pool.free):
            self._release_segment(pool.free[index])
            return True
        released = 0
        for block in reversed(list(pool.free)):
            if released >= wanted or block.size < limit:
                break
            released += block.size
            self._release_segment(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Free the oldest unused large segments until ``garbage_collection_threshold`` is met."""
        excess = self.reserved - int(self.options.garbage_collection_threshold * self.capacity)
        pools = [pool for pool in self._pools.values() if not pool.small]
        unused = [block for pool in pools for block in pool.free if not block.is_split and block.base is None]
        ages = {id(block): block.pool.searches - block.freed_at for block in unused}
        while excess > 0 and unused:
            threshold = sum(ages[id(block)] for block in unused) / len(unused)
            old = [block for block in unused if ages[id(block)] >= threshold]
            for block in old:
                excess -= block.size
                self._release_segment(block)
            unused = [block for block in unused if ages[id(block)] < threshold]

    def _release_segment(self, block: Block) -> None:
        block.pool.free.remove(block)
        self._release(block)

    # --- the device

    def _reserve(self, nbytes: int) -> bool:
        if self.reserved + nbytes > self.capacity:
            return False
        self.reserved += nbytes
        return True

    def _map(self, block: Block, nbytes: int) -> bool:
        """Reserve the first ``nbytes`` of an unmapped block. Return whether the device has them."""
        return self._reserve(nbytes)

    def _release(self, block: Block) -> None:
        self.reserved -= block.size
        if block.base is None:
            del self._segments[block.address]
            self._address_space.give_back(block.address, block.size)

    def _segment_bytes(self, pool: Pool) -> int:
        return SMALL_SEGMENT_BYTES if pool.small else self.options.large_segment_bytes

    def _pool(self, stream: int, small: bool) -> Pool:
        if (key := (stream, small)) not in self._pools:
            self._pools[key] = Pool(stream, small)
        return self._pools[key]

    def _note_peaks(self) -> None:
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        if self.active > self.peak_active:
            self.peak_active = self.active
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved


def _least_expandable(pool: Pool, index: int) -> int:
    """Return the index of the first block from ``index`` on whose successor cannot grow less. Blocks that can grow
    further are kept for larger requests."""
    block = pool.free[index]
    while index + 1 < len(pool.free) and pool.free[index + 1].expandable_bytes < block.expandable_bytes:
        index += 1
        block = pool.free[index]
    return index
