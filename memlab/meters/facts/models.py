"""Models and optimizers of a process."""

import math
from collections import Counter
from typing import Any

import torch

from .. import model_tree
from ..session import Session


def parameter_counts(model: torch.nn.Module) -> tuple[int, int]:
    """Count all parameters and the trainable ones: shared parameters once, partitioned ones with their full size."""
    sizes = {id(p): (parameter_size(p), p.requires_grad) for p in model.parameters()}.values()
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)


def parameter_size(parameter: torch.nn.Parameter) -> int:
    """Count the elements of a parameter, before partitioning and before quantization to 4 bits."""
    if quant_state := getattr(parameter, "quant_state", None):
        return math.prod(quant_state.shape)
    return getattr(parameter, "ds_numel", parameter.numel())


def optimizers(session: Session) -> list[dict[str, Any]]:
    """Describe each optimizer of the process."""
    return [_optimizer(optimizer) for optimizer in session.objects.optimizers]


def _optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    first = optimizer.param_groups[0]  # transformers gives the decay to the groups; the second has none
    return {
        "class": class_name(optimizer),
        "defaults": {**optimizer.defaults, **{key: first[key] for key in first.keys() & {"weight_decay"}}},
        "groups": len(optimizer.param_groups),
        "parameters": sum(map(parameter_size, parameters)),
        "dtypes": _dtypes(parameters),
    }


def models(session: Session) -> list[dict[str, Any]]:
    """Describe each module of the process that has parameters and is not part of another."""
    found = []
    for root in model_tree.roots():
        model, wrappers = model_tree.unwrapped(root)
        parameters = list(model.parameters())
        if parameters:
            # ``fully_shard`` gives a model a class of its own
            wrappers += ["FSDPModule"] * any(each.__name__ == "FSDPModule" for each in type(model).__mro__)
            of_model = {"trained": session.objects.train(model), "wrappers": wrappers}
            found.append(_described(model, parameters) | of_model)
    return sorted(found, key=lambda model: (not model["trained"], -model["parameters"]))


def _described(model: torch.nn.Module, parameters: list[torch.nn.Parameter]) -> dict[str, Any]:
    total, trainable = parameter_counts(model)
    config: Any = getattr(model, "config", None)
    adapters = getattr(model, "peft_config", None)
    quantization: Any = getattr(config, "quantization_config", None)
    convolutions = (module for module in model.modules() if isinstance(module, torch.nn.modules.conv._ConvNd))
    of_convolutions = (parameter for module in convolutions for parameter in module.parameters(recurse=False))
    return {
        "class": class_name(model),
        "parameters": total,
        "trainable_parameters": trainable,
        "convolution_parameters": sum(map(parameter_size, of_convolutions)),
        "dtypes": _dtypes(parameters),
        "device": str(parameters[0].device),
        "config": config.to_dict() if hasattr(config, "to_dict") else None,
        "attention": getattr(config, "_attn_implementation", None),
        "gradient_checkpointing": any(getattr(module, "gradient_checkpointing", False) for module in model.modules()),
        "adapters": {name: each.to_dict() for name, each in adapters.items()} if adapters else None,
        "quantization": quantization.to_dict() if hasattr(quantization, "to_dict") else quantization,
    }


def _dtypes(parameters: list[torch.nn.Parameter]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for parameter in parameters:
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter_size(parameter)
    return dict(counts)


def class_name(value: Any) -> str:
    """Return ``module.Name`` of a value's class."""
    kind = model_tree.class_of(value)
    return f"{kind.__module__}.{kind.__qualname__}"
