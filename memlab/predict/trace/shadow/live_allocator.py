"""Answers of the allocator to the running program: the events so far, replayed when the program asks."""

from memlab.predict.allocator import CachingAllocator, parse
from memlab.predict.trace.apply_events import apply
from memlab.predict.trace.trace_format import Trace


class LiveAllocator:
    """The caching allocator of the running rank, caught up on demand. It has no limit: the verdict is made later."""

    def __init__(self, trace: Trace):
        self._events = trace.events
        self._done = 0
        self._allocator = CachingAllocator()

    def configure(self, settings: str) -> None:
        """Set options, in the form of PYTORCH_ALLOC_CONF, before the first request."""
        self._allocator = CachingAllocator(parse(settings))

    def now(self) -> CachingAllocator:
        allocator, events = self._allocator, self._events
        for index in range(self._done, len(events)):
            apply(events[index], allocator)
        self._done = len(events)
        return allocator

    def reset_peaks(self) -> None:
        self.now().reset_peaks()
