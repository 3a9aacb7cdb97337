"""Calls that run for real: on host tensors only, except factories of large floats.

Batches, tokens and indices of samples are then real. Weights and buffers of optimizers are fake wherever they are, so
that they take no memory.
"""

from functools import cache
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memlab.meters.nested_tensors import tensors_in
from memlab.simulator.rank import device

LARGE_BYTES = 4 << 20
"""Floats that a factory makes on the host are fake from this size on."""


def runs(func, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a call must really be made."""
    first_is_fake = bool(args) and type(args[0]) is FakeTensor  # in most calls: then no other argument is looked at
    if first_is_fake or any(isinstance(tensor, FakeTensor) for tensor in tensors_in(args)):
        return False
    place = kwargs.get("device")
    is_on_gpu = place is not None and place.type == device.NAME
    if is_on_gpu or func.namespace == "c10d" or any(isinstance(tensor, FakeTensor) for tensor in tensors_in(kwargs)):
        return False
    return (place is not None and place.type == "meta") or not _makes_large_floats(func, args, kwargs)


def _makes_large_floats(func, args: tuple, kwargs: dict[str, Any]) -> bool:
    shape = _shape(func, args)
    if shape is None:
        return False
    like = args[0] if isinstance(args[0], torch.Tensor) else None
    if like is not None and like.device.type == "meta":
        return False
    dtype = kwargs.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
    return dtype.is_floating_point and prod(map(int, shape)) * dtype.itemsize >= LARGE_BYTES


@cache
def _position_of_size(func) -> int | None:
    """Position of the argument ``size`` of a factory, or -1 where the result is shaped like the first argument."""
    names = [argument.name for argument in func._schema.arguments]
    makes = "dtype" in names and "layout" in names
    return names.index("size") if makes and "size" in names else -1 if makes and "self" in names else None


def _shape(func, args: tuple):
    """Shape of the result of a factory; ``None`` for all other operators."""
    position = _position_of_size(func)
    if position is None:
        return None
    if position < 0:
        return args[0].shape if func is not torch.ops.aten._to_copy.default else None
    return args[position] if position < len(args) else None
