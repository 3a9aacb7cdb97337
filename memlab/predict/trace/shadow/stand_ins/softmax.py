"""Softmax: the temporaries of torch's operators, with eager attention and where CUDA has no fused attention kernel."""

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.stand_ins import StandIn

_aten = torch.ops.aten


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(
        kernels={
            _aten._safe_softmax.default: Kernel(workspaces=safe_softmax_masks, has_tensors=True),
            _aten._softmax_backward_data.default: Kernel(workspaces=backward_product, has_tensors=True),
        }
    )


def safe_softmax_masks(scores: torch.Tensor, *rest, **options) -> list[int]:
    """Return the bytes of two masks: the scores that are minus infinity, and the rows in which all scores are.

    Source: ``_safe_softmax`` in ``aten/src/ATen/native/transformers/attention.cpp`` of PyTorch 2.11.
    """
    return [scores.numel(), scores.numel() // scores.shape[-1]]


def backward_product(grad: torch.Tensor, output: torch.Tensor, *rest, **options) -> list[int]:
    """Return the bytes of the product of gradient and softmax, which CUDA holds while it computes the new gradient.

    Source: ``softmax_backward_cuda_out`` in ``aten/src/ATen/native/cuda/SoftMax.cu``.
    """
    return [output.numel() * output.element_size()]
