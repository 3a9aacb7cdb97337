"""Gradient of an embedding: partial sums of the rows of a token that occurs several times (trace/reduction_scratch.py).

The temporary memory of the sort is left out.
"""

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.reduction_scratch import EACH_INDEX, EACH_SEGMENT, EACH_SUM, EmbeddingBlock
from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.stand_ins import StandIn

_SUM_BYTES = 4


def stand_in(config: Config, gpu: GpuModel) -> StandIn | None:
    if config.training.loop != "command":
        return None  # memlab's own training: its predictions were judged without these blocks
    kernel = Kernel(temporaries=sorted_indices, workspaces=partial_sums)
    return StandIn(kernels={torch.ops.aten.embedding_dense_backward.default: kernel})


def sorted_indices(grad: torch.Tensor, indices: torch.Tensor, words: int, *rest, **options) -> list[EmbeddingBlock]:
    """Return the blocks of the sorted indices and of their places before the sort."""
    if indices.device.type != device.NAME:
        return []
    return 2 * [EmbeddingBlock(indices.numel(), words, EACH_INDEX, indices.element_size())]


def partial_sums(grad: torch.Tensor, indices: torch.Tensor, words: int, *rest, **options) -> list[EmbeddingBlock]:
    """Return the blocks of four lists of places, and of a row for each partial sum that there can be."""
    if indices.device.type != device.NAME:
        return []
    count, size = indices.numel(), indices.element_size()
    lists = (EACH_INDEX, EACH_SEGMENT, EACH_SEGMENT, EACH_SUM)
    sums = EmbeddingBlock(count, words, EACH_SUM, grad.shape[-1] * _SUM_BYTES)
    return [*(EmbeddingBlock(count, words, rows, size) for rows in lists), sums]
