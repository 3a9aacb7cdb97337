"""The string of PYTORCH_CUDA_ALLOC_CONF, read as PyTorch reads it.

Source: ``c10/core/AllocatorConfig.{h,cpp}`` and ``c10/cuda/CUDAAllocatorConfig.{h,cpp}`` of PyTorch 2.11 to 2.13.
"""

import re
from dataclasses import dataclass
from typing import Any

from memlab.errors import ConfigError, nearest

MIB = 1 << 20
MIN_BLOCK_BYTES = 512
INTERVALS = 16
"""Rounding to fractions of a power of two is set for each power of two from 1 MiB (and below) to 32 GiB (and above)."""

WITHOUT_EFFECT = (
    "backend",
    "graph_capture_record_stream_reuse",
    "pinned_background_threads",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
)
"""Keys that do not change which device blocks the native allocator hands out."""


@dataclass(frozen=True)
class Options:
    """PyTorch's defaults. Sizes are bytes."""

    expandable_segments: bool = False
    max_split_bytes: int = 1 << 62
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_bytes: int = 20 * MIB
    garbage_collection_threshold: float = 0.0
    memory_fraction: float = 1.0
    divisions: tuple[int, ...] = (0,) * INTERVALS

    def round(self, nbytes: int) -> int:
        """The size of block that a request for ``nbytes`` looks for."""
        divisions = self.divisions[_interval(nbytes // MIB)]
        if divisions > 1 and nbytes > MIN_BLOCK_BYTES * divisions:
            return _next_division(nbytes, divisions)
        return max(1, -(-nbytes // MIN_BLOCK_BYTES)) * MIN_BLOCK_BYTES


def parse(text: str) -> Options:
    """The options in ``text``, for instance ``max_split_size_mb:512,expandable_segments:True``.

    Raises :class:`ConfigError` for a key or a value that PyTorch refuses too.
    """
    values: dict[str, Any] = {}
    for pair in re.split(r",(?![^\[]*\])", text.replace(" ", "")) if text.strip() else ():
        key, _, value = pair.partition(":")
        if key in WITHOUT_EFFECT:
            continue
        if key not in _READERS:
            raise ConfigError(f"'{key}' is no option of PyTorch's allocator. {nearest(key, _READERS)}")
        name, read = _READERS[key]
        try:
            values[name] = read(value)
        except (ValueError, KeyError):
            raise ConfigError(f"'{value}' is no value of the allocator's option '{key}'.") from None
    return Options(**values)


def _mebibytes(value: str) -> int:
    return int(value) * MIB


def _flag(value: str) -> bool:
    return {"True": True, "False": False}[value]


def _divisions(value: str) -> tuple[int, ...]:
    """One number for all sizes, or ``[256:1,512:2,>:4]``: from 256 MiB (and below), from 512 MiB, and above the
    last."""
    if not value.startswith("["):
        return (int(value),) * INTERVALS
    divisions = [0] * INTERVALS
    last = None
    for entry in value.strip("[]").split(","):
        size, _, number = entry.partition(":")
        if size == ">":
            start = 0 if last is None else last + 1
            divisions[start:] = [int(number)] * (INTERVALS - start)
            continue
        interval = _interval(int(size))
        if last is None:
            divisions[:interval] = [int(number)] * interval
        divisions[interval] = int(number)
        last = interval
    return tuple(divisions)


_READERS = {
    "expandable_segments": ("expandable_segments", _flag),
    "max_split_size_mb": ("max_split_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "large_segment_size_mb": ("large_segment_bytes", _mebibytes),
    "garbage_collection_threshold": ("garbage_collection_threshold", float),
    "per_process_memory_fraction": ("memory_fraction", float),
    "roundup_power2_divisions": ("divisions", _divisions),
}


def _interval(mebibytes: int) -> int:
    return min(max(mebibytes.bit_length() - 1, 0), INTERVALS - 1)


def _next_division(nbytes: int, divisions: int) -> int:
    """``nbytes`` rounded up to a multiple of 1/``divisions`` of the power of two below it."""
    floor = 1 << (nbytes.bit_length() - 1)
    if nbytes == floor:
        return nbytes
    step = floor // divisions
    return -(-nbytes // step) * step if step else 2 * floor
