"""In-place variants of operators that autograd uses for plain tensors but not for fake ones."""

import sys
from typing import Any

import torch

_aten = torch.ops.aten
_ADD, _ADD_IN_PLACE = _aten.add.Tensor, _aten.add_.Tensor

_DERIVATIVES = {_aten.index_put.default: _aten.index_put_.default, _aten.scatter.src: _aten.scatter_.src}
"""Operators of derivatives that write into new zeros -> what they are for ordinary tensors. Source: ``index_backward``
in ``torch/csrc/autograd/FunctionsManual.cpp``, ``value_selecting_reduction_backward`` in
``aten/src/ATen/native/ReduceOps.cpp``."""

adds_masks = False
"""Whether attention now runs as a composition of other operators. It adds its mask to the scores, in place for ordinary
tensors. Source: ``_scaled_dot_product_attention_math`` in ``aten/src/ATen/native/transformers/attention.cpp``."""

_OWN_USES, _OWN_STORAGE_USES = 4, 2
"""Use counts of a gradient that only autograd holds, and of its storage, while it is an argument of a dispatch mode.
They include the references of the call itself."""


def for_ordinary_tensors(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return the operator that ordinary tensors would be given to in place of ``func``. Call it from a dispatch
    mode."""
    if func is _ADD and (adds_masks or _accumulates(*args, **kwargs)):
        return _ADD_IN_PLACE
    return _DERIVATIVES[func] if func in _DERIVATIVES and _is_derivative() else func


def _accumulates(first, second, *scale, **options) -> bool:
    """Whether this ``add`` is autograd accumulating a gradient that it would accumulate in place on a real device.

    Autograd adds in place if only autograd holds the first gradient and the gradient has its own dense memory. It never
    does so for tensor subclasses such as fake tensors.
    Source: ``torch/csrc/autograd/input_buffer.cpp``. No derivative in torch adds two whole tensors itself.
    """
    if not _is_derivative() or scale or options:
        return False
    caller = sys._getframe(2).f_back  # of the dispatch mode; None in autograd's own threads
    return (
        (caller is None or caller.f_code.co_name == "_engine_run_backward")
        and isinstance(second, torch.Tensor)
        and first.shape == second.shape
        and _is_dense(first)
        and first._use_count() <= _OWN_USES
        and torch._C._storage_Use_Count(first.untyped_storage()._cdata) <= _OWN_STORAGE_USES
    )


def _is_derivative() -> bool:
    """Whether autograd computes a gradient now; false while a checkpoint recomputes its forward."""
    return torch._C._current_autograd_node() is not None and not torch.is_grad_enabled()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps and without overlap (no expanded dimension)."""
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() == 1 + sum((size - 1) * stride for size, stride in extents)
