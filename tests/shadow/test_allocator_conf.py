"""memlab refuses the values of PYTORCH_CUDA_ALLOC_CONF that the installed PyTorch refuses.

A build for CPUs reads the options that all devices share, and passes over the others.
"""

import pytest
import torch

from memlab.core.allocator_conf import read
from memlab.core.errors import ConfigError

pytestmark = pytest.mark.shadow

VALUES = {
    "expandable_segments": ("True", "False", "true", "1", ""),
    "max_split_size_mb": ("19", "20", "64", "x"),
    "max_non_split_rounding_mb": ("19", "20"),
    "large_segment_size_mb": ("10", "11", "20"),
    "garbage_collection_threshold": ("-1", "0", "0.5", "1", "1.5"),
    "roundup_power2_divisions": ("0", "1", "3", "4", "[256:1,>:4]", "[256:0]", "[255:1]", "[256:3]", "[256:1"),
    "pinned_use_background_threads": ("True", "yes"),
}


def is_taken(read_text, conf: str) -> bool:
    try:
        read_text(conf)
    except (ConfigError, RuntimeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("conf", [f"{key}:{value}" for key, values in VALUES.items() for value in values])
def test_a_value_is_taken_where_pytorch_takes_it(conf):
    before = torch._C._accelerator_getAllocatorSettings()
    try:
        assert is_taken(read, conf) == is_taken(torch._C._accelerator_setAllocatorSettings, conf)
    finally:
        torch._C._accelerator_setAllocatorSettings(before)
