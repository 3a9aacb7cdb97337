"""Operators of torch on CUDA: temporaries of their kernels, the order of their results, results that have no shape yet.

Dropout: CUDA allocates the mask before the output, which decides the free blocks that they get. Source:
``dropout_cuda`` in ``aten/src/ATen/native/cuda/Dropout.cu``.
Decompositions: cuSOLVER overwrites the matrices that it is given, so that torch copies them. Source: ``svd_cusolver``
in ``aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp``. cuSOLVER's work area is not counted: only cuSOLVER
can tell its size.
Copies between host and device that also convert the dtype go through a contiguous temporary. Non-blocking copies
convert on the GPU, blocking copies on the host. Source: ``copy_kernel_cuda`` in
``aten/src/ATen/native/cuda/Copy.cu``.
Draws from a multinomial distribution have a temporary like its weights.
Sums over rows: thread blocks that share an output keep partial sums (trace/reduction_scratch.py).
Gradients of embeddings: the rows of a token that occurs several times have partial sums (trace/reduction_scratch.py).
The temporary memory of the sort is left out.
Products of matrices in half precision with a result in single precision (``out_dtype``): chunked losses use them, and
torch before 2.13 cannot tell the shape of ``addmm``'s result without data.
"""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch

from memlab.simulator.rank.device import NAME, is_on
from memlab.simulator.rank.recorder import WITH_INDICES
from memlab.simulator.rank.stand_ins import GpuModel, Kernel, Recorder, StandIn
from memlab.simulator.trace.reduction_scratch import (
    EACH_INDEX,
    EACH_SEGMENT,
    EACH_SUM,
    EmbeddingBlock,
    Reduction,
    over_rows,
)

_aten = torch.ops.aten


def stand_in(gpu: GpuModel) -> StandIn:
    sum_of_rows = Kernel(workspaces=partial(sum_buffer, gpu=gpu))
    indexing = Kernel(temporaries=copied_indices, has_tensors=True)
    kernels = {
        **dict.fromkeys(WITH_INDICES, indexing),
        _aten.native_dropout.default: Kernel(last_result_first=True),
        _aten._linalg_svd.default: Kernel(workspaces=_copy, has_tensors=True),
        _aten.copy_.default: Kernel(workspaces=copy_temporary, has_tensors=True),
        _aten._to_copy.default: Kernel(workspaces=to_copy_temporary, has_tensors=True),
        _aten._safe_softmax.default: Kernel(workspaces=safe_softmax_masks, has_tensors=True),
        _aten._softmax_backward_data.default: Kernel(workspaces=softmax_backward_product, has_tensors=True),
        _aten.sum.dim_IntList: sum_of_rows,
        _aten.mean.dim: sum_of_rows,
        _aten.multinomial.default: Kernel(workspaces=draws, has_tensors=True),
        _aten.embedding_dense_backward.default: Kernel(temporaries=sorted_indices, workspaces=partial_sums),
    }
    changes = {
        "torch._subclasses.fake_impls": _shape_of_addmm,
        "torch.distributed._functional_collectives": _wrap_without_copy,
    }
    return StandIn(changes=changes, kernels=kernels)


def _wrap_without_copy(collectives: ModuleType, recorder: Recorder) -> None:
    """Wrap results of functional collectives as on GPUs: the fake implementation of PyTorch 2.13 makes new tensors."""
    if hasattr(collectives, "_wrap_tensor_autograd"):
        recorder.in_python.add(collectives._wrap_tensor_autograd._opoverload)


def _copy(matrices: torch.Tensor, *rest, **options) -> list[int]:
    return [matrices.numel() * matrices.element_size()]


# --- copies between host and device


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


# --- softmax, with eager attention and where CUDA has no fused attention kernel


def safe_softmax_masks(scores: torch.Tensor, *rest, **options) -> list[int]:
    """Return the bytes of two masks (the scores that are minus infinity, and the rows in which all are) and a zero.

    Source: ``_safe_softmax`` in ``aten/src/ATen/native/transformers/attention.cpp`` of PyTorch 2.11.
    """
    return [scores.numel(), scores.numel() // scores.shape[-1], scores.element_size()]


def softmax_backward_product(grad: torch.Tensor, output: torch.Tensor, *rest, **options) -> list[int]:
    """Return the bytes of the product of gradient and softmax, which CUDA holds while it computes the new gradient.

    Source: ``softmax_backward_cuda_out`` in ``aten/src/ATen/native/cuda/SoftMax.cu``.
    """
    return [output.numel() * output.element_size()]


# --- draws, such as the next tokens of a generation


def draws(weights: torch.Tensor, count: int, replacement: bool = False, **options) -> list[int]:
    """Return the bytes of an exponential draw for each weight, by which a draw without replacement divides it.

    The memory of several draws with replacement, for which CUDA has another kernel, is not counted.
    Source: ``multinomial_out`` in ``aten/src/ATen/native/Distributions.cpp`` of PyTorch 2.11.
    """
    return [] if replacement and count > 1 else [weights.numel() * weights.element_size()]


# --- indices


def copied_indices(
    source: torch.Tensor, indices: Sequence[torch.Tensor | None], values: Any = None, accumulate: bool = False, *rest
) -> list[int]:
    """Return the bytes of copies of the indices, which the kernel needs where their strides differ.

    Source: ``AdvancedIndex`` in ``aten/src/ATen/native/TensorAdvancedIndexing.cpp``. A sum of values with equal indices
    (``accumulate``) sorts them instead, which is left out.
    """
    given = [each for each in indices if each is not None]
    if not is_on(source) or len(given) < 2 or accumulate:
        return []
    given = torch.broadcast_tensors(*given)
    if len({each.stride() for each in given}) == 1:
        return []
    return [each.numel() * each.element_size() for each in given if not each.is_contiguous()]


# --- sums


def sum_buffer(
    tensor: torch.Tensor, dims: Sequence[int] | None = None, *rest, gpu: GpuModel, **options
) -> list[Reduction]:
    """Describe the buffer, also where it has 0 bytes: at other sizes of the batch it may have more."""
    if not is_on(tensor) or not tensor.is_floating_point() or not tensor.dim():
        return []
    summed = {dim % tensor.dim() for dim in dims or range(tensor.dim())}
    reduction = over_rows(tensor.shape, tensor.stride(), tensor.storage_offset(), summed, gpu)
    return [reduction] if reduction else []


# --- gradients of embeddings


def sorted_indices(grad: torch.Tensor, indices: torch.Tensor, words: int, *rest, **options) -> list[EmbeddingBlock]:
    """Return the blocks of the sorted indices and of their places before the sort."""
    if not is_on(indices):
        return []
    return 2 * [EmbeddingBlock(indices.numel(), words, EACH_INDEX, indices.element_size())]


def partial_sums(grad: torch.Tensor, indices: torch.Tensor, words: int, *rest, **options) -> list[EmbeddingBlock]:
    """Return the blocks of four lists of places, and of a row for each partial sum that there can be."""
    if not is_on(indices):
        return []
    count, size = indices.numel(), indices.element_size()
    lists = (EACH_INDEX, EACH_SEGMENT, EACH_SEGMENT, EACH_SUM)
    sums = EmbeddingBlock(count, words, EACH_SUM, grad.shape[-1] * torch.float32.itemsize)
    return [*(EmbeddingBlock(count, words, rows, size) for rows in lists), sums]


# --- products with a result in single precision


def _shape_of_addmm(fake_impls: ModuleType, recorder: Recorder) -> None:
    from torch._decomp import decomposition_table

    for overload in (_aten.addmm.dtype, _aten.addmm.dtype_out):  # before 2.13 those of addmm, which take it for beta
        decomposition_table.pop(overload, None)

    @fake_impls.register_op_impl(_aten.addmm.dtype)
    def addmm(mode, func, bias, first, second, out_dtype, **factors):
        return first.new_empty((first.shape[0], second.shape[1]), dtype=out_dtype)

    @fake_impls.register_op_impl(_aten.addmm.dtype_out)
    def addmm_into(mode, func, bias, first, second, out_dtype, *, out, **factors):
        return out
