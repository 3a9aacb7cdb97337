"""bitsandbytes without a GPU: fake 4-bit weights, and the temporaries of their matrix products.

All other code is bitsandbytes' own: its operators are torch operators that have fake implementations.
"""

import importlib
from math import prod
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._python_dispatch import _disable_current_modes

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.memory_kinds import WRITTEN_OUT
from memlab.predict.trace.shadow.counting import bytes_in_memory
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn | None:
    if config.adapter.method != "qlora":
        return None
    ops = _cuda_ops()
    ops._gpu_dispatch_props = lambda device_index: (gpu.multiprocessors, *gpu.capability)
    dequantization = _Dequantization(ops)
    product = Kernel(temporaries=dequantization.temporaries, launches=dequantization.launches, flops=_product_flops)
    return StandIn(
        changes={"bitsandbytes.nn.modules": _fake_weights},
        kernels={torch.ops.bitsandbytes.gemm_4bit.default: product},
        kinds=(("bitsandbytes/functional.py", "dequantize_4bit", WRITTEN_OUT),),
        smooth_from=ops._gemm_4bit_custom_max_m + 1,
    )


def _fake_weights(modules: ModuleType, recorder: Recorder) -> None:
    import bitsandbytes

    modules.Params4bit = bitsandbytes.nn.Params4bit = _weights(recorder.fake_mode)


def _weights(fake_mode: FakeTensorMode) -> type:
    """Return bitsandbytes' ``Params4bit`` as a fake tensor; the original class cannot wrap fake tensors."""
    import bitsandbytes

    class Params4bit(bitsandbytes.nn.Params4bit, FakeTensor):
        def __new__(cls, data, requires_grad=False, blocksize=None, quant_storage=torch.uint8, **attributes):
            with _disable_current_modes(), in_kernel_invocation_manager(fake_mode):
                same_storage = torch.ops.aten.detach.default(data)
            weight = FakeTensor.__new__(cls, fake_mode, same_storage, data.device)
            weight.blocksize, weight.quant_storage = blocksize or 64, quant_storage
            weight.compress_statistics = attributes.get("compress_statistics", True)
            weight.quant_type = attributes.get("quant_type", "fp4")
            weight.quant_state = attributes.get("quant_state")
            weight.bnb_quantized = attributes.get("bnb_quantized", False)
            weight.module = attributes.get("module")
            return weight

    return Params4bit


def _product_flops(rows, packed, shape, *rest, out_shape=None, **named) -> int:
    """Return the FLOPs of a product, from shapes: a multiplication and an addition for each row and each weight."""
    return 2 * prod(rows[:-1]) * prod(shape)


class _Dequantization:
    """Dequantization of the 4-bit weight of a product. Its methods receive the arguments of ``gemm_4bit``.

    With few rows, a bitsandbytes kernel reads the 4 bits directly. With more rows, the weight is dequantized, and its
    scales too if they are quantized. bitsandbytes' own function decides.
    Source: ``bitsandbytes/backends/cuda/ops.py`` of bitsandbytes 0.50, ``gemm_4bit`` and ``_dequant_linear_fallback``.
    """

    def __init__(self, ops: Any):
        self._ops = ops

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

    def _reads_4_bits(self, rows: torch.Tensor, shape, blocksize: int) -> bool:
        width = rows.shape[-1]
        count = rows.numel() // width
        if count > self._ops._gemm_4bit_custom_max_m or width % blocksize:
            return False
        return self._ops._gemm_4bit_use_custom_cuda(0, rows.dtype, count, shape[0], width)


def _weight_bytes(rows: torch.Tensor, shape) -> int:
    return prod(shape) * rows.element_size()


def _cuda_ops() -> Any:
    """Import the Python module that bitsandbytes uses on a GPU."""
    return importlib.import_module("bitsandbytes.backends.cuda.ops")
