"""The table of what a trace cannot see."""

import pytest

from memlab.predict.constants import generation, pinned_block

MIB = 1 << 20


@pytest.mark.parametrize(
    ("gpu", "capability", "workspace"),
    [
        ("NVIDIA H200", (9, 0), 32 * MIB),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 8519680),
        ("NVIDIA A10G", (8, 6), 8519680),
        ("Tesla T4", (7, 5), 8519680),
        ("NVIDIA B200", (10, 0), 32 * MIB),
    ],
)
def test_generation_by_name(gpu, capability, workspace):
    found = generation(gpu)
    assert (found.capability, found.cublas_workspace) == (capability, workspace)


@pytest.mark.parametrize(
    ("nbytes", "block"), [(1, 512), (512, 512), (513, 1024), (1 << 30, 1 << 30), (3 << 29, 1 << 31)]
)
def test_page_locked_memory_is_rounded_to_a_power_of_two(nbytes, block):
    assert pinned_block(nbytes) == block
