"""Stand-ins for bitsandbytes without a GPU: fake 4-bit weights, and the temporaries of its matrix products.

All other code is bitsandbytes' own: its operators are torch operators that have fake implementations.
"""

import importlib
import inspect
from collections.abc import Callable
from math import prod
from types import ModuleType

import bitsandbytes
import peft
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import register_flop_formula

from memlab.predict.constants import Generation
from memlab.predict.trace.shadow.counting import Counter
from memlab.predict.trace.shadow.trace import Recorder


def install(recorder: Recorder, fake_mode: FakeTensorMode, gpu: Generation) -> None:
    weights = _weights(fake_mode)
    bitsandbytes.nn.modules.Params4bit = bitsandbytes.nn.Params4bit = weights
    recorder.temporaries[torch.ops.bitsandbytes.gemm_4bit.default] = _product_temporaries(gpu, recorder.counter)
    if "auto_clear_cache" in inspect.signature(peft.prepare_model_for_kbit_training).parameters:
        peft.prepare_model_for_kbit_training = _emptying(recorder, peft.prepare_model_for_kbit_training)
    recorder.trace.smooth_from = _cuda_ops()._gemm_4bit_custom_max_m + 1
    register_flop_formula(torch.ops.bitsandbytes.gemm_4bit)(_product_flops)


def _weights(fake_mode: FakeTensorMode) -> type:
    """bitsandbytes' ``Params4bit`` as a fake tensor; the original class cannot wrap fake tensors."""

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


def _emptying(recorder: Recorder, prepare: Callable) -> Callable:
    """Make peft's ``prepare`` empty the allocator's cache at its end, as peft does on a GPU.

    On a GPU, peft empties the cache after its casts and allocates nothing after that.
    """

    def prepare_and_empty(*args, **options):
        model = prepare(*args, **options)
        recorder.empty_cache()
        return model

    return prepare_and_empty


def _product_flops(rows, packed, shape, *rest, out_shape=None, **named) -> int:
    """FLOPs of a product, from shapes: a multiplication and an addition for each row and each weight."""
    return 2 * prod(rows[:-1]) * prod(shape)


def _product_temporaries(gpu: Generation, counter: Counter):
    """Return a function that gives the bytes of the temporaries of a product with a 4-bit weight on this GPU.

    Call the function once per product: it also counts the kernel that dequantizes the weight.

    With few rows, a bitsandbytes kernel reads the 4 bits directly and needs no temporary. With more rows, the weight is
    dequantized, and its scales too if they are quantized. bitsandbytes' own function decides.
    Source: ``bitsandbytes/backends/cuda/ops.py`` of bitsandbytes 0.50, ``gemm_4bit`` and ``_dequant_linear_fallback``.
    """
    ops = _cuda_ops()
    ops._gpu_dispatch_props = lambda device_index: (gpu.multiprocessors, *gpu.capability)

    def temporaries(
        rows, packed, shape, absmax, blocksize, quant_type, bias=None, absmax_8bit=None, *nested, **named_nested
    ) -> list[int]:
        width = rows.shape[-1]
        count = rows.numel() // width
        may_read_4_bits = count <= ops._gemm_4bit_custom_max_m and width % blocksize == 0
        if may_read_4_bits and ops._gemm_4bit_use_custom_cuda(0, rows.dtype, count, shape[0], width):
            return []
        scales = [] if absmax_8bit is None else 2 * [absmax_8bit.numel() * torch.float32.itemsize]
        weight = prod(shape) * rows.element_size()
        counter.writes_out(packed, nbytes=weight)
        return [*scales, weight]

    return temporaries


def _cuda_ops() -> ModuleType:
    """Import the Python module that bitsandbytes uses on a GPU."""
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):  # needed only while the module is imported
        torch._C._cuda_getCurrentRawStream = None
    return importlib.import_module("bitsandbytes.backends.cuda.ops")
