"""Attention as CUDA would compute it: the kernel that is chosen, its saved tensors and its scratch memory.

torch chooses the kernel of ``scaled_dot_product_attention`` by device, and would choose the one that needs the most
memory for the simulated device. This module makes CUDA's choice instead. The kernels' own meta functions give the
outputs and saved tensors. Source: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` of PyTorch 2.11.
"""

from collections.abc import Callable
from types import ModuleType

import torch
from torch._meta_registrations import alloc_with_matching_layout
from torch._subclasses.fake_tensor import FakeTensor

from memlab.simulator.rank import device, in_place
from memlab.simulator.rank.flash_attention import flash
from memlab.simulator.rank.stand_ins import GpuModel, Kernel, Recorder, StandIn

FLASH = "memlab_fa"
"""Name of the stand-in for the flash-attn package in transformers. If the name contained "flash", transformers would
look for the package."""

_MATH = torch._C._nn.scaled_dot_product_attention
_aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)

Shape = tuple[int, ...]
"""Batch, heads, tokens and head size."""

_ALIGNMENT = 8
"""Elements to which the efficient kernel aligns the rows of a mask."""

_CUDNN_PLAN_BYTES = 256
"""Workspace of cuDNN's plan for the backward. Measured: what each of the three requests in ``cudnn_workspaces`` has
beyond the tensors of cudnn-frontend."""


def stand_in(gpu: GpuModel) -> StandIn:
    def choose_kernels(functional: ModuleType, recorder: Recorder) -> None:
        attention = attention_on(gpu)
        attention.__module__, attention.__qualname__ = functional.__name__, attention.__name__  # pickle finds it there
        functional.scaled_dot_product_attention = attention
        # Whole layers in one operator, in evaluation alone: the layers themselves need a little more memory.
        torch.backends.mha.set_fastpath_enabled(False)

    return StandIn(
        changes={
            "torch._subclasses.fake_impls": _without_sums,
            "torch.nn.functional": choose_kernels,
            "torch.utils.flop_counter": _count_shared_heads,
            "transformers.masking_utils": _register,
        },
        kernels={
            _aten._scaled_dot_product_flash_attention_backward.default: Kernel(
                workspaces=flash_workspaces, has_tensors=True
            ),
            _aten._scaled_dot_product_cudnn_attention_backward.default: Kernel(workspaces=cudnn_workspaces),
            _aten._scaled_dot_product_efficient_attention_backward.default: Kernel(
                workspaces=efficient_sums, further=efficient_workspaces, has_tensors=True
            ),
        },
    )


def _without_sums(fake_impls: ModuleType, recorder: Recorder) -> None:
    """Leave out the sums of scores that cuDNN's forward computes for a backward alone (log-sum-exp,
    ``compute_log_sumexp``). torch's own fake implementation always has them."""

    @fake_impls.register_op_impl(_aten._scaled_dot_product_cudnn_attention.default)
    def attention(mode, func, query, key, value, bias, compute_log_sumexp: bool, *rest, **options) -> tuple:
        rows = [*query.shape[:3], 1]
        out = alloc_with_matching_layout(query, (*query.shape[:3], value.shape[-1]))
        sums = query.new_empty(rows if compute_log_sumexp else [0], dtype=torch.float32)
        seed, offset = (query.new_empty([], dtype=torch.int64) for _ in range(2))
        return out, sums, None, None, query.shape[2], key.shape[2], seed, offset, None


def _register(masking_utils: ModuleType, recorder: Recorder) -> None:
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(FLASH, _flash_attention)
    masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(FLASH, masking_utils.flash_attention_mask)


def _count_shared_heads(flop_counter: ModuleType, recorder: Recorder) -> None:
    """Count FLOPs also where several query heads share a key head, for which torch before 2.13 has no formula."""
    flop_counter.sdpa_flop_count = _forward_flops
    flop_counter.sdpa_backward_flop_count = _backward_flops


def _forward_flops(query: Shape, key: Shape, value: Shape) -> int:
    """FLOPs of the scores and of their product with the values, both for every query head.

    Source: Dao et al., FlashAttention-2 (2023), section 4.1, whose ``4 * tokens**2 * head * heads`` is the case of
    equal lengths and head sizes.
    """
    batch, heads, tokens, head = query
    return 2 * batch * heads * tokens * key[2] * (head + value[3])


def _backward_flops(grad_out: Shape, query: Shape, key: Shape, value: Shape) -> int:
    """FLOPs of five products: the scores once more, and the gradients of query, key, value and scores.

    Source: Dao et al., FlashAttention-2 (2023), sections 2.2 and 4.1: 2.5 times those of forward.
    """
    batch, heads, tokens, head = query
    return 2 * batch * heads * tokens * key[2] * (3 * head + 2 * value[3])


def attention_on(gpu: GpuModel) -> Callable[..., torch.Tensor]:
    """Return ``torch.nn.functional.scaled_dot_product_attention`` for GPUs of one model.

    It is a function with the name by which the compiler and context parallelism know it.
    """

    def scaled_dot_product_attention(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ) -> torch.Tensor:
        if device.is_on(query):
            query, key, value, attn_mask = map(_as_autocast_would, (query, key, value, attn_mask))
            kernel = choose(gpu, query, key, value, attn_mask, enable_gqa)
        else:
            kernel = "math"
        if kernel == "math":
            in_place.adds_masks = {type(query), type(attn_mask)} <= {FakeTensor, type(None)}  # no DTensor, no vmap
            try:
                return _MATH(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            finally:
                in_place.adds_masks = False
        if kernel == "flash":
            return flash(query, key, value, dropout_p, is_causal, scale)
        bias = additive(attn_mask, query)
        # should_compute_logsumexp() of attention.cpp
        trains = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        if kernel == "cudnn":
            op = _aten._scaled_dot_product_cudnn_attention
            return op(query, key, value, bias, trains, dropout_p, is_causal, False, scale=scale)[0]
        op = _aten._scaled_dot_product_efficient_attention
        if bias is not None:
            bias = aligned(bias).expand(*query.shape[:3], key.shape[2])
        return op(query, key, value, bias, trains, dropout_p, is_causal, scale=scale)[0]

    return scaled_dot_product_attention


def choose(gpu: GpuModel, query, key, value, mask: torch.Tensor | None, enable_gqa: bool) -> str:
    """Return the kernel that computes attention: ``cudnn``, ``flash``, ``efficient`` or ``math``."""
    if not enable_gqa and not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return "math"  # fused kernels do not broadcast: sdp_utils_cpp.h, check_batch_size_and_num_heads_dense
    if any(tensor.stride(-1) != 1 for tensor in (query, key, value, mask) if tensor is not None):
        return "math"  # T5's position bias, for example: sdp_utils_cpp.h, check_last_dim_stride_equals_1_dense
    half, head, value_head = query.dtype in _HALF, query.shape[-1], value.shape[-1]
    trained_mask = mask is not None and mask.requires_grad  # sdp_utils_cpp.h, check_attn_mask_shape
    fits_cudnn = half and head <= 128 and head % 8 == 0 and query.shape[2] > 1 and not trained_mask
    if gpu.prefers_cudnn_attention and fits_cudnn:
        return "cudnn"
    if gpu.capability >= (8, 0) and half and mask is None and head == value_head <= 256:
        return "flash"
    shares_keys = key.shape[1] < query.shape[1]  # flash and cuDNN support this
    return "efficient" if head % (8 if half else 4) == 0 and not shares_keys else "math"


def _as_autocast_would(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Convert a float to autocast's dtype, as for every function of its list ``lower_precision_fp``.

    Autocast's conversion belongs to ``scaled_dot_product_attention``, which the kernels below are called without.
    """
    if tensor is None or not torch.is_autocast_enabled(device.NAME) or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.get_autocast_dtype(device.NAME))


def additive(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Convert a boolean mask to one that is added to the scores, in the dtype of the query.

    Source: ``convert_boolean_attn_mask_`` in ``aten/src/ATen/native/transformers/attention.cpp``.
    """
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=mask.device))


def aligned(bias: torch.Tensor) -> torch.Tensor:
    """Align a mask for the efficient kernel: pad its rows to a multiple of 8 elements, then slice them to size.

    Source: ``preprocess_mask`` in ``aten/src/ATen/native/transformers/attention.cpp`` (``mem_eff_alignment = 8``, 16
    bytes in half precision): pads when a stride is no multiple of 8 or the elements of a row are not neighbours.
    """
    if bias.stride(-1) == 1 and all(stride % _ALIGNMENT == 0 for stride in bias.stride()[:-1]):
        return bias
    size = bias.shape[-1]
    return torch.nn.functional.pad(bias, (0, _ALIGNMENT - size % _ALIGNMENT))[..., :size]


def _flash_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
    """Compute attention as the flash-attn package does for samples without padding; ``attention_mask`` is ignored.

    For padded samples transformers copies query, key and value without their padding (``_upad_input`` in
    ``modeling_flash_attention_utils.py``). These copies depend on the data and are not predicted.
    """
    return flash(query, key, value, dropout, True, scaling).transpose(1, 2), None


def flash_workspaces(grad_out, query, key, value, *rest, **options) -> list[int]:
    """Return the scratch bytes of flash's backward, one entry for each block.

    The blocks hold the row sums of the softmax (fp32), the query gradient (accumulated in fp32), and, when several
    query heads share a key head, the gradients of key and value for every query head.

    Source: ``mha_bwd`` in pytorch's and flash-attn's ``flash_api.cpp`` (rows rounded up to 128, head size to 32).
    """
    batch, heads, rows, head = query.shape
    rows_rounded, head_rounded = -(-rows // 128) * 128, -(-head // 32) * 32
    sums = 4 * batch * heads * rows_rounded
    return [sums, sums * head_rounded, *_expanded(query, key)]


def cudnn_workspaces(grad_out, query, key, value, *rest, **options) -> list[int]:
    """Return the scratch bytes of cuDNN's backward: one block with flash's (``flash_workspaces``), not rounded up.

    Source: ``CompositeSDPABackwardNode`` in cudnn-frontend's ``scaled_dot_product_flash_attention.h`` (``softmax_sum``,
    ``dQ_accum``, ``dK_fullhead``, ``dV_fullhead``), to which the plan of cuDNN adds a workspace of its own. Memory
    histories of an H200 (cuDNN 9, PyTorch 2.11) show one request of exactly this size for each layer: 2,377,984 bytes
    (9 heads of 64, 3 of keys, 512 tokens), 2,130,176 (16 of 64, 16, 512) and 16,481,152 (32 of 128, 8, 501).
    """
    sums = _sums(query)
    return [sums + sums * query.shape[-1] + sum(_expanded(query, key)) + _CUDNN_PLAN_BYTES]


def efficient_sums(grad_out, query, *rest, **options) -> list[int]:
    """Return the bytes of the product of output and gradient in single precision, and of its sums over the head size.
    In half precision the efficient kernel computes the sums itself.

    Source: ``_efficient_attention_backward`` in ``aten/src/ATen/native/transformers/cuda/attention_backward.cu``.
    """
    sums = _sums(query)
    return [] if query.element_size() == 2 else [sums * grad_out.shape[-1], sums]


def efficient_workspaces(grad_out, query, key, value, *rest, **options) -> list[int]:
    """Return the bytes of the row sums and of the query gradient, to which each part of the keys adds. The gradient is
    in blocks of rows and columns, each with a header of 16 bytes.

    Source: ``GradQTempStorage`` in ``mem_eff_attention/kernel_backward.h`` beside the source of ``efficient_sums``, and
    ``kernels/generate_kernels.py``. A memory history of an H200 shows this size for heads of 64 in float32. Not
    counted: gradients of keys and values in parts, for heads of more than 128 elements in half precision, or of more
    than 64 on GPUs with less shared memory (compute capability 8.6 and 8.9).
    """
    batch, heads, rows, head = query.shape
    most = max(head, value.shape[-1])
    height, width = (128 if most > 64 else 64), (128 if query.element_size() == 2 and 64 < most <= 128 else 64)
    blocks = -(-rows // height) * -(-head // width)
    return [_sums(query), batch * heads * blocks * (16 + 4 * height * width)]


def _sums(query) -> int:
    """Return the bytes of one number in single precision for each row."""
    batch, heads, rows, _ = query.shape
    return 4 * batch * heads * rows


def _expanded(query, key) -> list[int]:
    """Return the bytes of the gradients of key and value for every query head, before the sum over shared key heads."""
    batch, heads, _, head = query.shape
    return [] if key.shape[1] == heads else 2 * [query.element_size() * batch * key.shape[2] * heads * head]
