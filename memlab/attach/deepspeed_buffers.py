"""Memory that DeepSpeed's ZeRO optimizers hold beside parameters and states: master weights outside of a step,
gradients between backward and step, and the buckets of collectives."""

import sys
from collections.abc import Iterator
from typing import Any

import torch

from . import model_tree
from .nested_tensors import tensors_in
from .owner import BUCKETS, GRADIENTS, MASTER, Owner

ATTRIBUTES = {
    "fp32_partitioned_groups_flat": MASTER,
    "fp32_groups_gradients_flat": GRADIENTS,
    "grad_partitions_flat_buffer": GRADIENTS,
    "grads_in_partition": GRADIENTS,
    "averaged_gradients": GRADIENTS,
    "all_grad_tensors": GRADIENTS,
    "ipg_buckets": BUCKETS,
}
"""Attribute of a ZeRO optimizer (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py; bf16_optimizer.py) -> kind of its
tensors."""


def owned() -> Iterator[tuple[torch.Tensor, Owner]]:
    """Yield each tensor with its owner, whose name is the optimizer's attribute. Without DeepSpeed there is none."""
    optimizers = getattr(sys.modules.get("deepspeed.runtime.base_optimizer"), "ZeROOptimizer", None)
    for optimizer in [] if optimizers is None else model_tree.objects_of(optimizers):
        for name, kind in ATTRIBUTES.items():
            for tensor in tensors_in(_held(optimizer, name)):
                dtype = str(tensor.dtype).removeprefix("torch.")
                yield tensor, Owner(kind, "", name, dtype, True)


def _held(optimizer: Any, name: str) -> Any:
    """Return what an attribute holds: of buckets, which are objects by dtype, their buffers."""
    value = vars(optimizer).get(name)
    return [bucket.buffer for bucket in value.values()] if value and name == "ipg_buckets" else value
