"""Attention as CUDA would compute it: which kernel is picked, what it keeps for backward, which scratch memory it
takes.

``scaled_dot_product_attention`` picks its kernel inside torch, by device; a device that is not there gets the one that
needs the most memory. The choice is made here instead, and the kernels' own meta functions give outputs and saved
tensors. Source: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` of PyTorch 2.11.
"""

import torch

from memlab.predict.constants import Generation
from memlab.predict.shadow.trace import Recorder

FLASH = "memlab_fa"
"""The name under which transformers knows the stand-in for the flash-attn package (a name with "flash" in it would make
it look for the package)."""

_MATH = torch._C._nn.scaled_dot_product_attention
_aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)


def install(recorder: Recorder, gpu: Generation) -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask

    torch.nn.functional.scaled_dot_product_attention = _Sdpa(gpu)
    AttentionInterface.register(FLASH, _flash_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(FLASH, flash_attention_mask)
    recorder.workspaces[_aten._scaled_dot_product_flash_attention_backward.default] = flash_workspaces
    recorder.workspaces[_aten._scaled_dot_product_cudnn_attention_backward.default] = cudnn_workspaces
    recorder.workspaces[_aten._safe_softmax.default] = safe_softmax_temporaries
    recorder.workspaces[_aten._softmax_backward_data.default] = softmax_backward_temporary


def stand_in_for(implementation: str) -> str:
    """transformers' name of an attention implementation that runs without its package."""
    return FLASH if implementation.startswith("flash") else implementation


class _Sdpa:
    """``torch.nn.functional.scaled_dot_product_attention`` on a GPU of a generation."""

    def __init__(self, gpu: Generation):
        self.gpu = gpu

    def __call__(
        self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ) -> torch.Tensor:
        kernel = self.choose(query, key, value, attn_mask, enable_gqa)
        if kernel == "math":
            return _MATH(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if kernel == "flash":
            return flash(query, key, value, dropout_p, is_causal, scale)
        if enable_gqa:  # of the fused kernels, only flash and cuDNN take fewer key heads than query heads
            groups = query.shape[1] // key.shape[1]
            if kernel == "efficient" and groups > 1:
                return _MATH(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True)
        bias = additive(attn_mask, query)
        if kernel == "cudnn":
            op = _aten._scaled_dot_product_cudnn_attention
            return op(query, key, value, bias, True, dropout_p, is_causal, False, scale=scale)[0]
        op = _aten._scaled_dot_product_efficient_attention
        return op(query, key, value, aligned(bias), True, dropout_p, is_causal, scale=scale)[0]

    def choose(self, query, key, value, mask: torch.Tensor | None, enable_gqa: bool) -> str:
        if not enable_gqa and not query.shape[:2] == key.shape[:2] == value.shape[:2]:
            return "math"  # the others do not broadcast: sdp_utils_cpp.h, check_batch_size_and_num_heads_dense
        half, head, value_head = query.dtype in _HALF, query.shape[-1], value.shape[-1]
        if self.gpu.prefers_cudnn_attention and half and head <= 128 and head % 8 == 0 and query.shape[2] > 1:
            return "cudnn"
        if self.gpu.capability >= (8, 0) and half and mask is None and head == value_head <= 256:
            return "flash"
        return "efficient" if head % (8 if half else 4) == 0 else "math"


def flash(query, key, value, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    """The flash kernel; heads whose size is no multiple of 8 are padded to one, as torch does."""
    head = query.shape[-1]
    padding = -head % 8
    if padding:
        scale = scale or head**-0.5
        query, key, value = (torch.nn.functional.pad(tensor, (0, padding)) for tensor in (query, key, value))
    op = _aten._scaled_dot_product_flash_attention
    out = op(query, key, value, dropout_p, is_causal, scale=scale)[0]
    return out[..., :head] if padding else out


def additive(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A boolean mask becomes one that is added, in the precision of the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, float("-inf")).to(query.dtype)


def aligned(bias: torch.Tensor | None) -> torch.Tensor | None:
    """The efficient kernel wants rows of a multiple of 16 bytes' worth of elements; others are padded and cut."""
    if bias is None or bias.shape[-1] % 16 == 0:
        return bias
    return torch.nn.functional.pad(bias, (0, -bias.shape[-1] % 16))[..., : bias.shape[-1]]


def _flash_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
    """What the flash-attn package computes and keeps (it pads nothing away here: a mask means packing, of equal
    size)."""
    out = flash(query, key, value, dropout, True, scaling)
    return out.transpose(1, 2), None


def flash_workspaces(grad_out, query, key, value, *rest, **options) -> list[int]:
    """Scratch bytes of flash's backward: the query gradient summed in fp32, the row sums of the softmax, and the
    gradients of key and value with every query head's own where several share one.

    Source: ``mha_bwd`` in pytorch's and flash-attn's ``flash_api.cpp`` (rows rounded up to 128, heads to 32).
    """
    batch, heads, rows, head = query.shape
    rows_rounded, head_rounded = -(-rows // 128) * 128, -(-head // 32) * 32
    sums = 4 * batch * heads * rows_rounded
    return [sums, sums * head_rounded, *_expanded(query, key)]


def cudnn_workspaces(grad_out, query, key, value, *rest, **options) -> list[int]:
    """The same of cuDNN's backward, which takes it all at once and rounds nothing up.

    Source: measured. Memory histories of an H200 (cuDNN 9, PyTorch 2.11) show, byte for byte, one request of this size
    for each layer: 2,377,984 (9 heads of 64, 3 of keys, 512 tokens), 2,130,176 (16 of 64, 16, 512) and 16,481,152 (32
    of 128, 8, 501).
    """
    batch, heads, rows, head = query.shape
    sums = 4 * batch * heads * rows
    return [sums + sums * head + sum(_expanded(query, key)) + 256]


def safe_softmax_temporaries(scores, *rest, **options) -> list[int]:
    """Bytes of two masks: which scores are minus infinity, and which rows are so altogether.

    Source: ``_safe_softmax`` in ``aten/src/ATen/native/transformers/attention.cpp`` of PyTorch 2.11.
    """
    return [scores.numel(), scores.numel() // scores.shape[-1]]


def softmax_backward_temporary(grad, output, *rest, **options) -> list[int]:
    """Bytes of the product of gradient and result, which CUDA keeps beside the gradient that it makes.

    Source: ``softmax_backward_cuda_out`` in ``aten/src/ATen/native/cuda/SoftMax.cu``.
    """
    return [output.numel() * output.element_size()]


def _expanded(query, key) -> list[int]:
    """Bytes of the gradients of key and value before they are summed over the query heads that share one."""
    batch, heads, _, head = query.shape
    return [] if key.shape[1] == heads else 2 * [query.element_size() * batch * key.shape[2] * heads * head]
