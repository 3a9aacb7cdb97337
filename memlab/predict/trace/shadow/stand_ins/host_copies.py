"""Copies between host and device that also convert the dtype: their temporary on the device.

Source: ``aten/src/ATen/native/cuda/Copy.cu``, ``copy_kernel_cuda``: a copy across devices between different dtypes goes
through a contiguous temporary. Non-blocking copies convert on the GPU, blocking copies on the host.
"""

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.device import NAME
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(
        kernels={
            torch.ops.aten.copy_.default: Kernel(workspaces=copy_temporary, has_tensors=True),
            torch.ops.aten._to_copy.default: Kernel(workspaces=to_copy_temporary, has_tensors=True),
        }
    )


def copy_temporary(destination: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> list[int]:
    """Return the bytes of the device temporary of ``destination.copy_(source)``."""
    return _temporary(source, destination.device, destination.dtype, non_blocking)


def to_copy_temporary(source: torch.Tensor, *, dtype=None, device=None, non_blocking=False, **layout) -> list[int]:
    """Return the bytes of the device temporary of ``source.to(device, dtype)``, without its result."""
    return _temporary(source, torch.device(device or source.device), dtype or source.dtype, non_blocking)


def _temporary(source: torch.Tensor, device: torch.device, dtype: torch.dtype, non_blocking: bool) -> list[int]:
    if source.device.type == device.type or source.dtype is dtype or not non_blocking:
        return []
    # A copy to the host converts first. A copy from the host converts last, from a temporary of the source's dtype.
    itemsize = dtype.itemsize if source.device.type == NAME else source.element_size()
    return [source.numel() * itemsize]
