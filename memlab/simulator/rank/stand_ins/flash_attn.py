"""flash-attn without a GPU: its outputs, saved tensors and scratch memory, on torch's operators for the same kernels.

Samples of one length use the kernel of ``scaled_dot_product_attention`` (stand_ins/attention.py), padded and packed
samples that for sequences of several lengths. Source: ``flash_attn/flash_attn_interface.py``,
``flash_attn/bert_padding.py`` and ``csrc/flash_attn/flash_api.cpp`` of flash-attn 2.8.3.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

from memlab.simulator.rank import device
from memlab.simulator.rank.flash_attention import flash
from memlab.simulator.rank.stand_ins import GpuModel, Kernel, Package, StandIn
from memlab.simulator.trace.trace_format import DECIDED

_aten = torch.ops.aten

VERSION = "2.8.3"

_INSTALLED = (
    f"flash-attn, which is not installed here, was taken as installed on the GPUs, in version {VERSION}{DECIDED}"
)


def stand_in(gpu: GpuModel) -> StandIn:
    functions = (
        *(flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_with_kvcache),
        *(flash_attn_varlen_func, flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func),
    )
    named: dict[str, Any] = {each.__name__: _noted(each) for each in functions}
    padding: dict[str, Any] = {function.__name__: function for function in (index_first_axis, pad_input, unpad_input)}
    modules = {"flash_attn": named, "flash_attn.flash_attn_interface": named, "flash_attn.bert_padding": padding}
    return StandIn(
        packages=(Package("flash-attn", VERSION, modules),),
        kernels={_aten._flash_attention_backward.default: Kernel(workspaces=varlen_workspaces, has_tensors=True)},
    )


def _noted(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Note that a script uses the package: whether it will be installed on the GPUs is not known."""

    @functools.wraps(function)
    def noted(*args: Any, **options: Any) -> torch.Tensor:
        device.recorder.trace.assumed.setdefault(_INSTALLED, 1)
        return function(*args, **options)

    return noted


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, *rest, **options) -> torch.Tensor:
    """Tensors have the shape (batch, tokens, heads, head size)."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return flash(q, k, v, dropout_p, causal, softmax_scale).transpose(1, 2)


def flash_attn_kvpacked_func(q, kv, *rest, **options) -> torch.Tensor:
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], *rest, **options)


def flash_attn_qkvpacked_func(qkv, *rest, **options) -> torch.Tensor:
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *rest, **options)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    dropout_p=0.0, softmax_scale=None, causal=False, *rest, **options,
) -> torch.Tensor:  # fmt: skip
    """Tensors have the shape (tokens of all samples, heads, head size)."""
    head = q.shape[-1]
    q, k, v = (pad(tensor, (0, -head % 8)) if head % 8 else tensor for tensor in (q, k, v))
    bounds = cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k)
    scale = softmax_scale or head**-0.5
    out = _aten._flash_attention_forward(q, k, v, *bounds, dropout_p, causal, False, scale=scale)[0]
    return out[..., :head]


def flash_attn_varlen_kvpacked_func(q, kv, *rest, **options) -> torch.Tensor:
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], *rest, **options)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, *rest, **options) -> torch.Tensor:
    bounds = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    return flash_attn_varlen_func(qkv[:, 0], qkv[:, 1], qkv[:, 2], *bounds, *rest, **options)


def flash_attn_with_kvcache(q, k_cache, v_cache, *rest, **options) -> torch.Tensor:
    """Of generation alone: the caches are written in place."""
    return torch.empty_like(q)


def varlen_workspaces(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, *rest, **options
) -> list[int]:
    """Return the scratch bytes of the backward for several lengths, one entry for each block.

    As ``flash_workspaces`` of stand_ins/attention.py, with 128 rows more for each sample in place of rounded rows.
    Source: ``mha_varlen_bwd`` in flash-attn's ``flash_api.cpp`` (``softmax_d``, ``dq_accum``, ``dk_expanded``).
    """
    (tokens, heads, head), key_heads = query.shape, key.shape[1]
    sums = 4 * heads * (tokens + 128 * (cum_seq_q.numel() - 1))
    expanded = [] if key_heads == heads else 2 * [key.element_size() * key.shape[0] * heads * head]
    return [sums, sums * -(-head // 32) * 32, *expanded]


# --- samples without their padding


class _IndexFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, indices):
        ctx.save_for_backward(indices)
        ctx.shape = rows.shape
        flat = rows.reshape(rows.shape[0], -1)
        return flat.gather(0, indices[:, None].expand(-1, flat.shape[1])).reshape(-1, *rows.shape[1:])

    @staticmethod
    def backward(ctx, gradient):
        (indices,) = ctx.saved_tensors
        flat = gradient.reshape(gradient.shape[0], -1)
        whole = flat.new_zeros(ctx.shape[0], flat.shape[1])
        return whole.scatter_(0, indices[:, None].expand(-1, flat.shape[1]), flat).reshape(ctx.shape), None


class _IndexPutFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, indices, count):
        ctx.save_for_backward(indices)
        whole = rows.new_zeros(count, *rows.shape[1:])
        whole[indices] = rows
        return whole

    @staticmethod
    def backward(ctx, gradient):
        (indices,) = ctx.saved_tensors
        return gradient[indices], None, None


def index_first_axis(rows, indices) -> torch.Tensor:
    return _IndexFirstAxis.apply(rows, indices)


def unpad_input(hidden_states, attention_mask, unused_mask=None) -> tuple:
    """Return the tokens of all samples without padding, their indices, the samples' bounds, the longest sample, and
    the samples' lengths."""
    mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    bounds = pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, bounds, lengths.max().item(), used


def pad_input(hidden_states, indices, batch, seqlen) -> torch.Tensor:
    """Return the tokens at their places among the padding: (batch, seqlen, ...)."""
    return _IndexPutFirstAxis.apply(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
