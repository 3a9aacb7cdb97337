"""Model of PyTorch's CUDA caching allocator, for replays without torch."""

from memlab.predict.allocator.caching import Before, CachingAllocator, OutOfMemory
from memlab.predict.allocator.options import Options, parse
from memlab.predict.allocator.recording import RecordingAllocator

__all__ = ["Before", "CachingAllocator", "Options", "OutOfMemory", "RecordingAllocator", "parse"]
