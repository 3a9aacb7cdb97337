"""Tensors in the arguments, results and attributes of other people's code."""

from typing import Any

import torch


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, at any depth of dictionaries, lists and tuples."""
    found: list[torch.Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, dict):
        for each in value.values():
            _collect(each, found)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, found)
