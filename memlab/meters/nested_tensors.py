"""Tensors in the arguments, results and attributes of other people's code."""

from typing import Any

import torch


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, at any depth of dictionaries, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for each in value for tensor in tensors_in(each)]
