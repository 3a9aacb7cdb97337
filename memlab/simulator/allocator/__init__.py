"""Model of PyTorch's CUDA caching allocator, for replays without torch."""

from memlab.simulator.allocator.caching import Before, CachingAllocator, OutOfMemory
from memlab.simulator.allocator.options import Options, parse
from memlab.simulator.allocator.recording import RecordingAllocator

__all__ = ["Before", "CachingAllocator", "Options", "OutOfMemory", "RecordingAllocator", "parse"]
