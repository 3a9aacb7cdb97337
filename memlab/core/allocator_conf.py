"""Parser of PYTORCH_CUDA_ALLOC_CONF that accepts what PyTorch accepts, so that no misspelt option reaches a rank.

Source: ``c10/core/AllocatorConfig.{h,cpp}`` and ``c10/cuda/CUDAAllocatorConfig.{h,cpp}`` of PyTorch 2.11 to 2.13.
"""

import re
from collections.abc import Callable
from typing import Any

from memlab.core.errors import ConfigError, nearest

INTERVALS = 16
"""Number of size intervals of ``roundup_power2_divisions``: one for each power of two, from 1 MiB (and all smaller
sizes) to 32 GiB (and all larger sizes)."""


def read(text: str) -> dict[str, Any]:
    """Parse the text into option -> value: a bool, a number (in MiB for ``*_mb``), or :data:`INTERVALS` numbers.

    Raises :class:`ConfigError` for an option or a value that PyTorch refuses too.
    """
    values: dict[str, Any] = {}
    for pair in filter(None, re.split(r",(?![^\[]*\])", "".join(text.split()))):
        key, _, value = pair.partition(":")
        if key not in _OPTIONS:
            raise ConfigError(f"'allocator.conf': PyTorch's allocator has no option '{key}'. {nearest(key, _OPTIONS)}")
        value_of, wanted = _OPTIONS[key]
        try:
            values[key] = value_of(value)
        except (ValueError, KeyError):
            raise ConfigError(f"'allocator.conf': '{key}' must be {wanted}, not '{value}'.") from None
    return values


def interval(mebibytes: int) -> int:
    """Return the index (0 to :data:`INTERVALS` - 1) of the interval that a size belongs to."""
    return min(max(mebibytes.bit_length() - 1, 0), INTERVALS - 1)


Option = tuple[Callable[[str], Any], str]
"""Function that parses the value of an option, and a description of the valid values for error messages."""


def _one_of(values: dict[str, Any]) -> Option:
    return values.__getitem__, " or ".join(values)


def _whole(minimum: int, unit: str = "") -> Option:
    return lambda text: _checked(_number(text), lambda n: n >= minimum), f"a whole number of at least {minimum}{unit}"


def _number(text: str) -> int:
    """Parse a whole number. Refuse what Python accepts and ``std::stoull`` does not: ``1_000``, non-ASCII digits."""
    return _checked(int(_checked(text, re.compile(r"\+?[0-9]+").fullmatch)), lambda n: n < 2**64)


def _fraction(text: str) -> float:
    """Parse a decimal number. Refuse what Python accepts and ``std::stod`` does not."""
    return float(_checked(text, re.compile(r"[0-9.eE+-]+").fullmatch))


def _checked(value: Any, is_valid: Callable[[Any], object]) -> Any:
    if not is_valid(value):
        raise ValueError(value)
    return value


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _divisions(text: str) -> tuple[int, ...]:
    """Parse the divisions for each interval: one number for all sizes, or a list such as ``[256:1,512:2,>:4]``.

    In this list, 1 is for the interval of 256 MiB and all smaller sizes, 2 for 512 MiB, 4 for all larger sizes.
    """
    if not text.startswith("["):
        return (_checked(_number(text), _is_power_of_two),) * INTERVALS
    divisions = [0] * INTERVALS
    last = -1
    for entry in _checked(text, lambda text: text.endswith("]"))[1:-1].split(","):
        size, _, number = entry.partition(":")
        count = _checked(_number(number), lambda n: n == 0 or _is_power_of_two(n))
        if size == ">":
            divisions[last + 1 :] = [count] * (INTERVALS - last - 1)
            continue
        here = interval(_checked(_number(size), _is_power_of_two))
        first = 0 if last < 0 else here
        divisions[first : here + 1] = [count] * (here + 1 - first)
        last = here
    return tuple(divisions)


_FLAG = _one_of({"True": True, "False": False})

_OPTIONS: dict[str, Option] = {
    "expandable_segments": _FLAG,
    "max_split_size_mb": _whole(20, " MiB"),
    "max_non_split_rounding_mb": _whole(20, " MiB"),
    "large_segment_size_mb": _whole(11, " MiB"),
    "garbage_collection_threshold": (lambda text: _checked(_fraction(text), lambda x: 0 < x < 1), "between 0 and 1"),
    "per_process_memory_fraction": (lambda text: _checked(_fraction(text), lambda x: 0 <= x <= 1), "from 0 to 1"),
    "roundup_power2_divisions": (_divisions, "a power of two, or a list of them such as [256:1,512:2,>:4]"),
    # The options below do not change which device blocks the native allocator hands out.
    "backend": _one_of({"native": "native", "cudaMallocAsync": "cudaMallocAsync"}),
    "graph_capture_record_stream_reuse": _FLAG,
    "pinned_background_threads": _whole(0),
    "pinned_max_cached_size_mb": _whole(0, " MiB"),
    "pinned_max_round_threshold_mb": _whole(0, " MiB"),
    "pinned_num_register_threads": (
        lambda text: _checked(_number(text), lambda n: _is_power_of_two(n) and n <= 128),
        "a power of two of at most 128",
    ),
    "pinned_reserve_segment_size_mb": _whole(0, " MiB"),
    "pinned_use_background_threads": _FLAG,
    "pinned_use_cuda_host_register": _FLAG,
    "pinned_use_hip_host_register": _FLAG,
    "release_lock_on_cudamalloc": _FLAG,
    "release_lock_on_hipmalloc": _FLAG,
}
