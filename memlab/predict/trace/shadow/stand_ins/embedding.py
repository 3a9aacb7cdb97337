"""Gradient of an embedding: partial sums of the rows of a token that occurs several times.

Source: ``embedding_dense_backward_cuda`` in ``aten/src/ATen/native/cuda/Embedding.cu`` and
``embedding_backward_cuda_kernel`` in ``EmbeddingBackwardKernel.cu`` beside it. The temporary memory of the sort is left
out.
"""

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.stand_ins import StandIn

MOST_IN_ONE_KERNEL = 3072
"""Indices up to which one kernel adds all rows, without partial sums."""

ROWS_OF_A_SUM = 10
"""Rows that a partial sum adds at most (``NROWS_PER_THREAD``)."""

_SUM_BYTES = 4


def stand_in(config: Config, gpu: GpuModel) -> StandIn | None:
    if config.training.loop != "command":
        return None  # these sizes cannot be interpolated, as those of memlab's own training are
    kernel = Kernel(temporaries=sorted_indices, workspaces=partial_sums)
    return StandIn(kernels={torch.ops.aten.embedding_dense_backward.default: kernel})


def sorted_indices(grad: torch.Tensor, indices: torch.Tensor, *rest, **options) -> list[int]:
    """Return the bytes of the sorted indices and of their places before the sort."""
    return 2 * [indices.numel() * indices.element_size()] if _is_split(indices) else []


def partial_sums(grad: torch.Tensor, indices: torch.Tensor, words: int, *rest, **options) -> list[int]:
    """Return the bytes of four lists of places, and of a row for each partial sum that there can be."""
    if not _is_split(indices):
        return []
    count, size = indices.numel(), indices.element_size()
    segments = min(count, words)
    sums = count // ROWS_OF_A_SUM + segments
    return [count * size, segments * size, segments * size, sums * size, sums * grad.shape[-1] * _SUM_BYTES]


def _is_split(indices: torch.Tensor) -> bool:
    return indices.device.type == device.NAME and indices.numel() > MOST_IN_ONE_KERNEL
