"""bitsandbytes without a GPU: fake weights in 4 and 8 bits, the temporaries of their products, and paged states.

All other code is bitsandbytes' own: its operators are torch operators that have fake implementations. The products in
8 bits run bitsandbytes' own Python code for CUDA, whose calls of compiled functions are only counted.

Its optimizers make their own states (``bitsandbytes/optim/optimizer.py``, bitsandbytes 0.50): a byte for each element,
a float32 scale for each 256 elements, and tables of 256 floats for all tensors; in 32 bits for tensors of fewer than
4,096 elements. Paged states are those of tensors of 100,000 elements or more.
"""

import importlib
from collections.abc import Callable
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils._python_dispatch import _disable_current_modes

from memlab.simulator.rank.counting import bytes_in_memory
from memlab.simulator.rank.kernel import Blocks
from memlab.simulator.rank.stand_ins import GpuModel, Kernel, Recorder, StandIn, add_kernels

_IN_PYTHON = ("int8_double_quant", "int8_mixed_scaled_mm", "int8_mm_dequant", "int8_scaled_mm", "int8_vectorwise_quant")
"""Operators whose own Python code for CUDA runs. Their fake implementations cannot know the number of outliers."""


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(
        changes={
            "bitsandbytes.cextension": _call_nothing,
            "bitsandbytes.nn": _fake_weights,
            "bitsandbytes.functional": _paged_on_the_host,
            "bitsandbytes.backends.cuda.ops": partial(_products, gpu=gpu),
        }
    )


class _CompiledFunctions:
    """bitsandbytes' compiled functions, which write into existing tensors and return 0 for success."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*addresses) -> int:
            return 0

        setattr(self, name, function)  # bitsandbytes sets the types of its arguments on this object
        return function


def _call_nothing(module: ModuleType, recorder: Recorder) -> None:
    module.lib = _CompiledFunctions()


def _paged_on_the_host(functional: ModuleType, recorder: Recorder) -> None:
    """Count paged states of optimizers as host memory: CUDA's managed memory is outside torch's allocator, and moves to
    the host when the GPU is full."""

    def get_paged(*shape, dtype=torch.float32, device=functional.FIRST_CUDA_DEVICE):
        tensor = recorder.host_tensor(shape, dtype)
        tensor.is_paged, tensor.page_deviceid = True, device.index
        return tensor

    functional.get_paged = get_paged
    _call_nothing(functional, recorder)  # which may have been imported before this stand-in


# --- weights


def _fake_weights(nn: ModuleType, recorder: Recorder) -> None:
    """Replace bitsandbytes' parameters, which cannot wrap fake tensors, by fake tensors with the same methods."""
    nn.modules.Params4bit = nn.Params4bit = _in_4_bits(nn.modules.Params4bit, recorder)
    nn.modules.Int8Params = nn.Int8Params = _in_8_bits(nn.modules.Int8Params, recorder)


def _in_4_bits(original: type, recorder: Recorder) -> type:
    class Params4bit(original, FakeTensor):
        def __new__(cls, data=None, requires_grad=False, blocksize=None, quant_storage=torch.uint8, **attributes):
            weight = _fake(cls, recorder, torch.empty(0) if data is None else data)  # a copy begins without data
            weight.blocksize, weight.quant_storage = blocksize or 64, quant_storage
            weight.compress_statistics = attributes.get("compress_statistics", True)
            weight.quant_type = attributes.get("quant_type", "fp4")
            weight.quant_state = attributes.get("quant_state")
            weight.bnb_quantized = attributes.get("bnb_quantized", False)
            weight.module = attributes.get("module")
            return weight

    return Params4bit


def _in_8_bits(original: type, recorder: Recorder) -> type:
    class Int8Params(original, FakeTensor):
        def __new__(cls, data, requires_grad=True, has_fp16_weights=False, CB=None, SCB=None, **unused):
            weight = _fake(cls, recorder, data).requires_grad_(requires_grad)
            weight.CB, weight.SCB, weight.has_fp16_weights = CB, SCB, has_fp16_weights
            return weight

    return Int8Params


def _fake(cls: type, recorder: Recorder, data: torch.Tensor) -> FakeTensor:
    data = data if isinstance(data, FakeTensor) else recorder.fake(data)
    with _disable_current_modes(), in_kernel_invocation_manager(recorder.fake_mode):
        same_storage = torch.ops.aten.detach.default(data)
    return FakeTensor.__new__(cls, recorder.fake_mode, same_storage, data.device)


# --- products


def _products(ops: ModuleType, recorder: Recorder, gpu: GpuModel) -> None:
    ops._gpu_dispatch_props = lambda device_index: (gpu.multiprocessors, *gpu.capability)
    operators, dequantization = torch.ops.bitsandbytes, _Dequantization(ops, recorder)
    # FLOPs of a product, from shapes: a multiplication and an addition for each row and each weight.
    in_4_bits = Kernel(
        temporaries=dequantization.temporaries,
        launches=dequantization.launches,
        kept=dequantization.kept,
        keeper="cuBLAS",
        flops=lambda rows, packed, shape, *rest, **options: 2 * prod(rows[:-1]) * prod(shape),
        owner="bitsandbytes.dequantize_4bit",
        has_tensors=True,
    )
    in_8_bits = Kernel(flops=lambda rows, weight, *rest, **options: 2 * prod(rows) * weight[0])
    add_kernels(recorder, {operators.gemm_4bit.default: in_4_bits, operators.int8_linear_matmul.default: in_8_bits})
    recorder.in_python.update(getattr(operators, name).default for name in _IN_PYTHON)


class _Dequantization:
    """Dequantization of the 4-bit weight of a product. Its methods receive the arguments of ``gemm_4bit``.

    With few rows, a bitsandbytes kernel reads the 4 bits directly. With more rows, the weight is dequantized, and its
    scales too if they are quantized. bitsandbytes' own function decides.
    Source: ``bitsandbytes/backends/cuda/ops.py`` of bitsandbytes 0.50, ``gemm_4bit`` and ``_dequant_linear_fallback``.
    """

    def __init__(self, ops: Any, recorder: Recorder):
        self._ops, self._kernels = ops, recorder.kernels

    def temporaries(
        self, rows, packed, shape, absmax, blocksize, quant_type, bias=None, absmax_8bit=None, *nested, **named_nested
    ) -> list[int]:
        """Return the bytes of the dequantized scales, twice, and of the dequantized weight."""
        if self._reads_4_bits(rows, shape, blocksize):
            return []
        scales = [] if absmax_8bit is None else 2 * [absmax_8bit.numel() * torch.float32.itemsize]
        return [*scales, _weight_bytes(rows, shape)]

    def launches(self, rows, packed, shape, absmax, blocksize, *rest, **options) -> list[list[int]]:
        """Return the bytes that the kernel which dequantizes the weight reads and writes."""
        if self._reads_4_bits(rows, shape, blocksize):
            return []
        return [[bytes_in_memory(packed), _weight_bytes(rows, shape)]]

    def kept(self, rows, packed, shape, absmax, blocksize, quant_type, bias=None, *rest, **options) -> Blocks:
        """Return the workspaces that torch's product with the dequantized weight keeps."""
        if self._reads_4_bits(rows, shape, blocksize):
            return []
        factors = rows, torch.empty(shape, device="meta")
        if bias is None:
            return self._kernels[torch.ops.aten.mm.default].kept(*factors)
        return self._kernels[torch.ops.aten.addmm.default].kept(bias, *factors)

    def _reads_4_bits(self, rows: torch.Tensor, shape, blocksize: int) -> bool:
        width = rows.shape[-1]
        count = rows.numel() // width
        if count > self._ops._gemm_4bit_custom_max_m or width % blocksize:
            return False
        return self._ops._gemm_4bit_use_custom_cuda(0, rows.dtype, count, shape[0], width)


def _weight_bytes(rows: torch.Tensor, shape) -> int:
    return prod(shape) * rows.element_size()


def cuda_ops() -> Any:
    """Import the Python module that bitsandbytes uses on a GPU."""
    return importlib.import_module("bitsandbytes.backends.cuda.ops")
