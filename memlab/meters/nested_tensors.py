"""Tensors in the arguments, results and attributes of other people's code."""

from collections.abc import Iterable
from typing import Any

import torch

NESTED = (list, tuple)
"""Types of values that hold others. ``isinstance(value, list | tuple)`` would make the union anew in each call."""

_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device})


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, at any depth of dictionaries, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    _collect((value,), found)
    return found


def _collect(values: Iterable[Any], found: list[torch.Tensor]) -> None:
    for value in values:
        if type(value) in _PLAIN:  # most arguments that are no tensors
            continue
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, dict):
            _collect(value.values(), found)
        elif isinstance(value, NESTED):
            _collect(value, found)
