"""Application of a trace's events to an allocator, one by one."""

from collections.abc import Iterator

from memlab.predict.allocator import CachingAllocator, OutOfMemory
from memlab.predict.trace.events import Alloc, EmptyCache, Event, Free, RecordStream, Synchronize
from memlab.predict.trace.trace_format import Trace


def apply(event: Event, allocator: CachingAllocator) -> None:
    """Let ``allocator`` do what the event says; events of other memory and marks change nothing.

    Raises :class:`OutOfMemory` for a request without room.
    """
    match event:
        case Alloc(key, nbytes, stream):
            allocator.malloc(key, nbytes, stream)
        case Free(key, release_delay):
            allocator.free(key, release_delay)
        case RecordStream(key, stream):
            allocator.record_stream(key, stream)
        case Synchronize(requests):
            allocator.synchronize(requests)
        case EmptyCache():
            allocator.empty_cache()


def replayed(trace: Trace, allocator: CachingAllocator) -> Iterator[CachingAllocator]:
    """Yield the ``allocator``, which must be new, after each event, until a request finds no room."""
    for event in trace.events:
        try:
            apply(event, allocator)
        except OutOfMemory:
            return
        yield allocator
