"""Convolutions: what cuDNN takes at most beside their tensors, where memory is free.

A convolution needs its tensors alone. Where memory is free, cuDNN's fastest engine may take a workspace, which is freed
at once; where it is not, torch goes on to an engine that takes less (``aten/src/ATen/native/cudnn/Conv_v8.cpp``). With
``torch.backends.cudnn.benchmark`` torch takes the largest workspace of all engines when it first meets a shape. Only
cuDNN can tell these sizes. The bounds here hold all of results/convolutions_1xH100 (cuDNN 9.19, H100).
"""

from collections.abc import Sequence
from math import ceil, log2, prod
from typing import Any

import torch

from memlab.core.sizes import MIB
from memlab.simulator.rank.device import is_on
from memlab.simulator.rank.stand_ins import GpuModel, Kernel, StandIn

_aten = torch.ops.aten

OF_AN_ENGINE = 3
"""Largest workspace of the engine that torch chooses, as a multiple of the bytes of input, filters and result: cuDNN
copies them into its own layout."""

OF_ALL_ENGINES, OF_ALL_IN_HALF = (4, 64 * MIB), (8, 512 * MIB)
"""Largest workspace of all engines, in float32 and in half precision: the same multiple, and bytes for sums in parts.
In float32, engines with Fourier transforms take more."""

TILE = 32
"""Width of the tiles, in elements, that engines with Fourier transforms cut images into."""


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(
        kernels={
            _aten.convolution.default: Kernel(spare=_of_forward),
            _aten.convolution_backward.default: Kernel(spare=_of_backward),
        }
    )


def _of_forward(out: torch.Tensor, images: torch.Tensor, filters: torch.Tensor, bias: Any, *how: Any) -> int:
    return workspace_at_most(images, filters, out, how[:3], how[5]) if is_on(images) else 0


def _of_backward(
    out: Any, grad: torch.Tensor, images: torch.Tensor, filters: torch.Tensor, biases: Any, *how: Any
) -> int:
    if not is_on(images):
        return 0
    return workspace_at_most(images, filters, grad, how[:3], how[5], has_gradient=how[6][1])


def workspace_at_most(
    images: torch.Tensor,
    filters: torch.Tensor,
    result: torch.Tensor,
    steps: Sequence[Sequence[int]],
    groups: int,
    has_gradient: bool = False,
) -> int:
    """Return the bytes of the largest workspace, with the settings of ``torch.backends.cudnn``.

    ``steps``: stride, padding and dilation, each by dimension. ``has_gradient``: whether that of the filters is
    computed, too.
    """
    stride, padding, dilation = steps
    own = sum(tensor.numel() * tensor.element_size() for tensor in (images, filters, result))
    if not torch.backends.cudnn.benchmark:
        return OF_AN_ENGINE * own
    is_single = images.dtype is torch.float32
    multiple, beside = OF_ALL_ENGINES if is_single else OF_ALL_IN_HALF
    bound = multiple * own + beside
    if not is_single or images.dim() != 4 or max(dilation) > 1:
        return bound
    sizes, pairs = images.shape[2:], images.shape[1] * result.shape[1] // groups
    tiles = prod(ceil(size / TILE) for size in sizes)
    of_tiles = pairs * prod(stride) + 2 * tiles * images.shape[0] * (images.shape[1] + result.shape[1])
    found = _transformed(TILE) * of_tiles
    if has_gradient and max(stride) == 1:
        windows = zip(sizes, padding, filters.shape[2:], strict=True)
        width = max(size + 2 * edge + window - 1 for size, edge, window in windows)
        found = max(found, 2 * _transformed(max(TILE, 1 << ceil(log2(width)))) * pairs)
    return bound + found


def _transformed(width: int) -> int:
    """Return the bytes of the Fourier transform of a real square image: complex numbers of half of its columns."""
    return 2 * torch.float32.itemsize * width * (width // 2 + 1)
