"""What a sum over rows takes on the GPU, against a memory history of an H200. No torch."""

import pytest

from memlab.simulator.constants import gpu_model
from memlab.simulator.trace.reduction_scratch import over_rows

H200 = gpu_model("NVIDIA H200")


def contiguous(*shape: int) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def buffer_bytes(*shape: int, gpu=H200) -> int:
    """Of a tensor that is summed over all dimensions but its last."""
    return over_rows(shape, contiguous(*shape), 0, set(range(len(shape) - 1)), gpu).buffer_bytes


@pytest.mark.parametrize(
    ("shape", "nbytes"),
    [
        ((1, 2048, 2048), 33_554_432),  # the hidden size
        ((1, 2048, 4, 128), 8_388_608),  # key heads
        ((1, 2048, 32, 128), 67_108_864),  # query heads
    ],
)
def test_a_memory_history_shows_these(shape, nbytes):
    assert buffer_bytes(*shape) == nbytes


def test_few_rows_need_none():
    assert buffer_bytes(1, 1020, 2048) == 0 < buffer_bytes(1, 1024, 2048)


def test_fewer_multiprocessors_share_less():
    assert buffer_bytes(1, 65536, 2048, gpu=gpu_model("Tesla T4")) < buffer_bytes(1, 65536, 2048)


def test_a_sum_of_neighbours_in_memory_takes_next_to_nothing():
    assert over_rows((2048, 2048), contiguous(2048, 2048), 0, {1}, H200) is None
    assert over_rows((2048, 2048), contiguous(2048, 2048), 0, {0, 1}, H200) is None


def test_odd_columns_are_summed_one_by_one():
    """A thread that sums one column is one of 512 in its block, where one that sums four is one of 128."""
    assert over_rows((4096, 1023), (1023, 1), 0, {0}, H200).vector == 1
    assert over_rows((4096, 1022), (1022, 1), 0, {0}, H200).vector == 2
    assert over_rows((4096, 1024), (1024, 1), 6, {0}, H200).vector == 2
