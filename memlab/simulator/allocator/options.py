"""Options of PyTorch's caching allocator, and the rounding of sizes that they imply.

Source: ``c10/core/AllocatorConfig.{h,cpp}`` and ``c10/cuda/CUDAAllocatorConfig.{h,cpp}`` of PyTorch 2.11 to 2.13.
"""

from dataclasses import dataclass

from memlab.core.allocator_conf import INTERVALS, interval, read
from memlab.core.sizes import MIB, UNLIMITED

MIN_BLOCK_BYTES = 512


@dataclass(frozen=True)
class Options:
    """Options of the allocator, with PyTorch's defaults. Sizes are bytes."""

    expandable_segments: bool = False
    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_bytes: int = 20 * MIB
    garbage_collection_threshold: float = 0.0
    memory_fraction: float = 1.0
    divisions: tuple[int, ...] = (0,) * INTERVALS

    def round(self, nbytes: int) -> int:
        """Return the block size that a request for ``nbytes`` is rounded up to."""
        divisions = self.divisions[interval(nbytes // MIB)]
        if divisions > 1 and nbytes > MIN_BLOCK_BYTES * divisions:
            return _next_division(nbytes, divisions)
        return max(1, -(-nbytes // MIN_BLOCK_BYTES)) * MIN_BLOCK_BYTES


def parse(text: str) -> Options:
    """Parse options, for instance ``max_split_size_mb:512,expandable_segments:True``.

    Raises :class:`ConfigError` for a key or a value that PyTorch refuses too.
    """
    given = {key: value for key, value in read(text).items() if key in _FIELDS}
    return Options(**{_FIELDS[key]: value * MIB if key.endswith("_mb") else value for key, value in given.items()})


_FIELDS = {
    "expandable_segments": "expandable_segments",
    "max_split_size_mb": "max_split_bytes",
    "max_non_split_rounding_mb": "max_non_split_rounding_bytes",
    "large_segment_size_mb": "large_segment_bytes",
    "garbage_collection_threshold": "garbage_collection_threshold",
    "per_process_memory_fraction": "memory_fraction",
    "roundup_power2_divisions": "divisions",
}
"""PyTorch's name of an option -> the field of :class:`Options`. Options without a field change no device block."""


def _next_division(nbytes: int, divisions: int) -> int:
    """Round ``nbytes`` up to a multiple of 1/``divisions`` of the power of two below it."""
    floor = 1 << (nbytes.bit_length() - 1)
    if nbytes == floor:
        return nbytes
    step = floor // divisions
    return -(-nbytes // step) * step if step else 2 * floor
