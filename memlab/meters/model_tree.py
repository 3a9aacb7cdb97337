"""Models of a process: the modules that are part of no other, without what wraps them."""

import gc
from typing import TypeVar

import torch

Kind = TypeVar("Kind")

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")
"""Attributes under which a wrapper holds the module that it wraps."""


def roots() -> list[torch.nn.Module]:
    """Find the modules that no other module holds. One whose ``__init__`` has just begun, as that of
    DistributedDataParallel is when its phase begins, or which is being copied, holds nothing yet, and is none."""
    modules = [module for module in objects_of(torch.nn.Module) if hasattr(module, "_modules")]
    inside = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inside]


def objects_of(kind: type[Kind]) -> list[Kind]:
    """Find the objects of a class, among all objects of the process."""
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def unwrapped(module: torch.nn.Module) -> tuple[torch.nn.Module, list[str]]:
    """Return the module inside its wrappers, and the names of their classes from the outside in."""
    wrappers: list[str] = []
    while True:
        inner = next((child for name, child in module.named_children() if name in WRAPPERS), None)
        if inner is None or len(list(module.children())) > 1:
            return module, wrappers
        wrappers.append(type(module).__name__)
        module = inner


def name_in(model: torch.nn.Module, path: str) -> str:
    """Return the name of a part or a parameter of a model: its path in it. Paths that begin with a number, as in a
    Sequential, follow the model's class: ``Sequential.0.weight``."""
    return f"{class_of(model).__name__}.{path}" if path[:1].isdigit() else path


def class_of(value: object) -> type:
    """Return the class of a value, below the class that ``fully_shard`` has made of it."""
    return next(each for each in type(value).__mro__ if not each.__module__.startswith("torch.distributed.fsdp"))
