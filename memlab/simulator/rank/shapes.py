"""Operators whose result's shape depends on values."""

from collections.abc import Sequence
from typing import Any

import torch

from memlab.meters.nested_tensors import tensors_in

_aten = torch.ops.aten

FROM_VALUES = frozenset(
    {
        *(_aten.nonzero.default, _aten.masked_select.default, _aten.bincount.default, _aten.repeat_interleave.Tensor),
        *(_aten._unique2.default, _aten.unique_dim.default, _aten.unique_consecutive.default),
    }
)


def results(func, args: tuple, values: Any, selects_all: bool) -> list[tuple[Sequence[int], torch.dtype]]:
    """Shape and dtype of each result. Where ``values``, the results on the host, is ``None``, all elements are
    selected, or none: the most and the least that can be."""
    if values is not None:
        return [(value.shape, value.dtype) for value in tensors_in(values)]
    first, number = args[0], args[0].numel() if selects_all else 0
    if func is _aten.nonzero.default:
        return [((number, first.dim()), torch.int64)]
    if func is _aten.bincount.default and len(args) > 2 and args[2]:
        return [((args[2],), torch.int64)]  # whoever says how many there are at least knows how many there are
    chosen = [((number,), first.dtype)]
    return chosen + [((first.numel(),), torch.int64)] * (len(func._schema.returns) - 1)
