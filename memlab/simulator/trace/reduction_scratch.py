"""Temporary memory of CUDA sums, by what determines it, so that it can be interpolated. Does not import torch.

The gradients of biases and of norm weights are sums over all tokens, whose thread blocks share an output. Source:
``setReduceConfig`` and ``ReduceConfig::global_memory_size`` in ``aten/src/ATen/native/cuda/Reduce.cuh`` of PyTorch 2.11
to 2.13.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from memlab.simulator.constants import GpuModel

THREADS, WARP = 512, 32
"""Maximum threads of a block, and threads of a warp (``mnt_wrapper``, ``warp_size``)."""

VECTOR = 4
"""Maximum number of neighbouring outputs that a thread sums at once (``get_output_vec_size``)."""

ENOUGH_TO_SPLIT, LEAST, ACCUMULATOR_BYTES = 256, 16, 4
"""Values per thread from which a sum is split between blocks (``max_values_per_thread``); minimum values per thread
after the split (``min_values_per_thread``); bytes of a partial sum (fp32)."""


class Reduction(NamedTuple):
    """A sum of ``inputs`` values for each of ``outputs``, on a GPU with ``multiprocessors`` of ``resident`` threads
    each. A thread sums ``vector`` neighbouring outputs."""

    outputs: int
    inputs: int
    vector: int
    multiprocessors: int
    resident: int

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the partial sums; 0 when no output is shared between blocks."""
        columns = max(self.outputs // self.vector, 1)  # 0 only in a copy with other sizes
        most = THREADS // self.vector
        width = min(_power_of_two_below(columns), most, WARP)
        height = min(_power_of_two_below(self.inputs), most // width)
        width = min(_power_of_two_below(columns), most // height)
        values = -(-self.inputs // height)
        blocks = -(-columns // width)
        blocks_at_once = self.multiprocessors * (self.resident // (width * height))
        if values < ENOUGH_TO_SPLIT or blocks > blocks_at_once:
            return 0
        fill, split = -(-blocks_at_once // blocks), -(-values // LEAST)
        shared = max(min(fill, split), -(-values // ENOUGH_TO_SPLIT))
        return ACCUMULATOR_BYTES * self.outputs * shared * width * self.vector if shared > 1 else 0


MOST_IN_ONE_KERNEL = 3072
"""Indices of an embedding up to which one kernel adds all rows of its gradient, without partial sums."""

ROWS_OF_A_SUM = 10
"""Rows that a partial sum adds at most (``NROWS_PER_THREAD``)."""

EACH_INDEX, EACH_SEGMENT, EACH_SUM = range(3)
"""What a block of an embedding's gradient has a row for: an index, a word that occurs, a partial sum that there can be.
"""


class EmbeddingBlock(NamedTuple):
    """A block for the gradient of an embedding of ``words`` rows, whose input has ``indices`` words. It has
    ``row_bytes`` for each item of ``rows``.

    Source: ``embedding_dense_backward_cuda`` in ``aten/src/ATen/native/cuda/Embedding.cu`` and
    ``embedding_backward_cuda_kernel`` in ``EmbeddingBackwardKernel.cu`` beside it, of PyTorch 2.11 to 2.13.
    """

    indices: int
    words: int
    rows: int
    row_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the block; 0 where one kernel adds all rows."""
        if self.indices <= MOST_IN_ONE_KERNEL:
            return 0
        segments = min(self.indices, self.words)
        number = {EACH_INDEX: self.indices, EACH_SEGMENT: segments, EACH_SUM: self.indices // ROWS_OF_A_SUM + segments}
        return number[self.rows] * self.row_bytes


Scratch = Reduction | EmbeddingBlock

_KINDS = {len(kind._fields): kind for kind in (Reduction, EmbeddingBlock)}


def scratch_of(fields: Sequence[int]) -> Scratch:
    """Return the scratch memory with these fields, whose number tells its kind."""
    return _KINDS[len(fields)](*fields)


def over_rows(
    shape: Sequence[int], strides: Sequence[int], offset: int, summed: Collection[int], gpu: GpuModel
) -> Reduction | None:
    """Describe the sum of a tensor over its dimensions ``summed``; ``strides`` and ``offset`` count elements.

    Returns ``None`` when the sum runs over neighbours in memory: its partial sums are a few KiB at most.
    """
    dims = [(stride, shape[dim], dim in summed) for dim, stride in enumerate(strides) if shape[dim] > 1]
    rows, columns = (_merged(dim[:2] for dim in dims if dim[2] is is_summed) for is_summed in (True, False))
    if not rows or not columns or rows[0][0] < columns[0][0]:
        return None
    vector = VECTOR if columns[0][0] == 1 else 1
    steps = (offset, columns[0][1], *(stride for stride, _ in (*rows, *columns[1:])))
    while any(step % vector for step in steps):
        vector //= 2
    outputs, inputs = (math.prod(size for _, size in dims) for dims in (columns, rows))
    return Reduction(outputs, inputs, vector, gpu.multiprocessors, gpu.resident_threads)


def _merged(dims: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort (stride, size) pairs by stride and merge dimensions that are contiguous with each other."""
    found: list[tuple[int, int]] = []
    for stride, size in sorted(dims):
        if found and stride == math.prod(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] * size)
        else:
            found.append((stride, size))
    return found


def _power_of_two_below(number: int) -> int:
    return 1 << (number.bit_length() - 1)
