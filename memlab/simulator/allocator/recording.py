"""Allocator that notes what it does, with the names of torch's memory history."""

from typing import Any, NamedTuple

from memlab.simulator.allocator.blocks import Block, Pool
from memlab.simulator.allocator.caching import CachingAllocator, OutOfMemory


class Action(NamedTuple):
    """Action of the allocator: alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map,
    segment_unmap or oom. ``nbytes``: of a block, as requested. ``address``: of an oom, the bytes that the device has
    free. ``base``: address at which the expandable segment begins; ``None`` in a segment of fixed size. ``page``: bytes
    that an expandable segment maps at once."""

    name: str
    address: int
    nbytes: int
    stream: int
    base: int | None = None
    page: int = 0


class RecordingAllocator(CachingAllocator):
    """Allocator with a list of its ``actions``. ``requested``: address of a block in use, or waiting for a side stream
    -> bytes that the program asked for."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.actions: list[Action] = []
        self.requested: dict[int, int] = {}
        for segment in self.segments():  # of before a recording
            self._note("segment_alloc", segment[0], segment[0].size)

    def segments(self) -> list[list[Block]]:
        """Return the blocks of each segment, by address; of an expandable segment, those of each part with memory."""
        blocks = [block for pool in self._pools.values() for block in pool.free]
        blocks += [block for block in self._live.values() if block is not None]
        blocks += [block for pending in self._pending.values() for _, _, block in pending]
        segments: list[list[Block]] = []
        for block in sorted(blocks, key=lambda block: block.address):
            if segments and segments[-1][-1].next is block:
                segments[-1].append(block)
            else:
                segments.append([block])
        return segments

    def malloc(self, key: int, nbytes: int, stream: int = 0) -> None:
        try:
            super().malloc(key, nbytes, stream)
        except OutOfMemory:
            self.actions.append(Action("oom", self.capacity - self.reserved, nbytes, stream))
            raise
        if (block := self._live[key]) is not None:
            self.requested[block.address] = nbytes
            self._note("alloc", block, nbytes)

    def free(self, key: int, release_delay: int | None = None) -> None:
        if (block := self._live[key]) is not None:
            self._note("free_requested", block, self.requested[block.address])
        super().free(key, release_delay)

    def _give_back(self, block: Block) -> None:
        self._note("free_completed", block, self.requested.pop(block.address))
        super()._give_back(block)

    def _new_segment(self, pool: Pool, size: int) -> Block | None:
        if (block := super()._new_segment(pool, size)) is not None and block.base is None:
            self._note("segment_alloc", block, block.size)
        return block

    def _map(self, block: Block, nbytes: int) -> bool:
        if has_room := super()._map(block, nbytes):
            self._note("segment_map", block, nbytes)
        return has_room

    def _release(self, block: Block) -> None:
        super()._release(block)
        self._note("segment_free" if block.base is None else "segment_unmap", block, block.size)

    def _note(self, name: str, block: Block, nbytes: int) -> None:
        page = self._segment_bytes(block.pool)
        self.actions.append(Action(name, block.address, nbytes, block.pool.stream, block.base, page))
