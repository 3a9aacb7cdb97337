"""Which operators compute single precision on tensor cores, by the settings of the script."""

from typing import Any

import torch

_aten = torch.ops.aten
_PRODUCTS = frozenset({_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm})


def uses_tf32(operator: Any) -> bool:
    """Return whether an operator that counts FLOPs computes single precision on tensor cores.

    cuBLAS and cuDNN do as the script sets it: by default products do not, and convolutions do. Fused attention always
    does, with three products of TF32 for one (PyTorch's source, mem_eff_attention/gemm_kernel_utils.h).
    """
    if operator in _PRODUCTS:
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "convolution" not in operator.__name__ or torch.backends.cudnn.conv.fp32_precision == "tf32"
