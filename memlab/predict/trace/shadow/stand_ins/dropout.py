"""Dropout: the order in which CUDA allocates its results, which decides the free blocks that they get.

Source: ``dropout_cuda`` in ``aten/src/ATen/native/cuda/Dropout.cu``, which allocates the mask before the output.
"""

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(kernels={torch.ops.aten.native_dropout.default: Kernel(last_result_first=True)})
