"""Copies of the matrices that torch decomposes: cuSOLVER overwrites what it is given.

Source: ``svd_cusolver`` in ``aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp`` of PyTorch. cuSOLVER's work
area is not counted: only cuSOLVER can tell its size.
"""

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(kernels={torch.ops.aten._linalg_svd.default: Kernel(workspaces=_copy, has_tensors=True)})


def _copy(matrices: torch.Tensor, *rest, **options) -> list[int]:
    return [matrices.numel() * matrices.element_size()]
