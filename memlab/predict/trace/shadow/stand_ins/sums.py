"""Sums over rows: the partial sums of thread blocks that share an output (trace/reduction_scratch.py)."""

from collections.abc import Sequence

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.reduction_scratch import Reduction, over_rows
from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    def buffer(tensor: torch.Tensor, dims: Sequence[int] | None = None, *rest, **options) -> list[Reduction]:
        """Describe the buffer, also where it has 0 bytes: at other sizes of the batch it may have more."""
        if tensor.device.type != device.NAME or not tensor.is_floating_point() or not tensor.dim():
            return []
        summed = {dim % tensor.dim() for dim in dims or range(tensor.dim())}
        reduction = over_rows(tensor.shape, tensor.stride(), tensor.storage_offset(), summed, gpu)
        return [reduction] if reduction else []

    kernel = Kernel(workspaces=buffer)
    return StandIn(kernels={torch.ops.aten.sum.dim_IntList: kernel, torch.ops.aten.mean.dim: kernel})
