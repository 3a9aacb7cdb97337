"""The operators that make up most of a trace, answered without FakeTensorMode: the same answers, in a tenth of the
time.

FakeTensorMode looks every call up in a cache whose key costs more than the answer. For a view, the meta kernel itself
is asked; for a collective, the tensors that it was given are the answer.
"""

from typing import Any

import torch
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

NO_ANSWER = object()

_aten, _c10d = torch.ops.aten, torch.ops.c10d
_EMPTY = _aten.empty.memory_format
_DEVICE = torch.ops.prim.device.default

VIEWS = frozenset(
    {
        _aten._unsafe_view.default,
        _aten.alias.default,
        _aten.as_strided.default,
        _aten.detach.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.squeeze.dim,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unsqueeze.default,
        _aten.view.default,
        _aten.view.dtype,
    }
)

IN_PLACE = frozenset(
    {
        _aten.add_.Tensor,
        _aten.copy_.default,
        _aten.div_.Tensor,
        _aten.mul_.Tensor,
        _aten.normal_.default,
        _aten.zero_.default,
    }
)
"""They return their first argument, and leave its shape and dtype as they are."""

_TENSORS_AND_WORK = frozenset(
    {
        _c10d._allgather_base_.default,
        _c10d._reduce_scatter_base_.default,
        _c10d.allgather_.default,
        _c10d.allreduce_.default,
        _c10d.broadcast_.default,
        _c10d.reduce_scatter_.default,
    }
)
"""Collectives that return what they wrote to, their first argument, and a work."""


def answer(mode: FakeTensorMode, func, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What ``func`` returns, or ``NO_ANSWER`` where FakeTensorMode has to be asked."""
    if func is _DEVICE:
        return args[0].fake_device if type(args[0]) is FakeTensor else NO_ANSWER
    if func is _EMPTY:
        return _empty(mode, args, kwargs)
    if func in _TENSORS_AND_WORK:
        return args[0], FakeWork().boxed()
    base = args[0] if args else None
    if type(base) is not FakeTensor or base.constant is not None:
        return NO_ANSWER
    if func in IN_PLACE:
        return base
    if func in VIEWS:
        with in_kernel_invocation_manager(mode):
            view = func(*args, **kwargs)
        return FakeTensor(mode, view, base.fake_device)
    return NO_ANSWER


def _empty(mode: FakeTensorMode, args: tuple, kwargs: dict[str, Any]) -> Any:
    device = torch.device(kwargs.get("device") or "cpu")
    if device.type == "meta":
        return NO_ANSWER
    with in_kernel_invocation_manager(mode):
        tensor = _EMPTY(*args, **{**kwargs, "device": "meta", "pin_memory": None})
    return FakeTensor(mode, tensor, device if device.type == "cpu" else torch.device(device.type, device.index or 0))
