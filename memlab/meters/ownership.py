"""Owners of the memory of this process: its models' parameters, gradients and buffers, and its optimizers' states."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from . import model_tree
from .garbage_collector import paused_garbage_collector
from .nested_tensors import tensors_in
from .owner import BUFFERS, GATHERED, GRADIENTS, MASTER, OPTIMIZER, WEIGHTS, Owner, add_owner
from .phases import BACKWARD, ONCE, OPTIMIZER_STEP


class Ownership:
    """Finds out who owns which block of memory.

    ``optimizers``: returns those of the process. ``block_of``: returns a number for the memory of a tensor, or ``None``
    if it is not to be noted. ``model``: the only one, if it is known; otherwise all objects are searched for models
    when a phase has run for the first time.
    """

    def __init__(
        self,
        optimizers: Callable[[], Iterable[torch.optim.Optimizer]],
        block_of: Callable[[torch.Tensor], int | None],
        model: torch.nn.Module | None = None,
    ):
        self._optimizers, self._block_of = optimizers, block_of
        self._searches = model is None
        self._first: set[str] = set()  # first phases that have ended
        self._labels: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._of_class: Counter[str] = Counter()
        if model is not None:
            self._name(model)

    def after(self, phase: str | None) -> dict[int, Owner]:
        """Return block -> owner at the end of a phase; nothing after phases that make no parameters or states."""
        if phase is None or phase.removeprefix("first_") not in (*ONCE, BACKWARD, OPTIMIZER_STEP):
            return {}
        if phase in ONCE or (phase.startswith("first_") and phase not in self._first):
            self._first.add(phase)
            self.search()
        return self.now()

    @paused_garbage_collector()
    def search(self) -> None:
        """Name the models that exist now, those that train first, unless the only one is known."""
        if self._searches:
            models = [model_tree.unwrapped(root)[0] for root in model_tree.roots()]
            for model in sorted(models, key=lambda model: not any(each.requires_grad for each in model.parameters())):
                self._name(model)

    @paused_garbage_collector()
    def now(self) -> dict[int, Owner]:
        """Return block -> owner."""
        found: dict[int, Owner] = {}
        for tensor, owner in self._tensors():
            for part in _parts(tensor):
                block = self._block_of(part)
                if block is not None:
                    add_owner(found, block, owner._replace(dtype=str(part.dtype).removeprefix("torch.")))
        return found

    def name_of(self, module: torch.nn.Module) -> str:
        """Return the name of a module in its model, and of a model its class; empty if no named model holds it."""
        parts = (
            (model_tree.name_in(model, path) or label, part)
            for model, label in self._labels.items()
            for path, part in model.named_modules()
        )
        return next((name for name, part in parts if part is module), "")

    def _name(self, model: torch.nn.Module) -> None:
        if model not in self._labels and next(model.parameters(), None) is not None:
            name = model_tree.class_of(model).__name__
            self._of_class[name] += 1
            self._labels[model] = name if self._of_class[name] == 1 else f"{name} {self._of_class[name]}"

    def _tensors(self) -> Iterator[tuple[Any, Owner]]:
        of_models = {
            parameter: Owner(WEIGHTS, label, model_tree.name_in(model, path), "", parameter.requires_grad)
            for model, label in list(self._labels.items())
            for path, parameter in model.named_parameters()
        }
        of_optimizers = {
            parameter: optimizer.state.get(parameter)
            for optimizer in list(self._optimizers())
            # between steps, ZeRO-3 empties the groups
            for parameter in (*chain(*(group["params"] for group in optimizer.param_groups)), *optimizer.state)
            if isinstance(parameter, torch.Tensor)
        }
        # Of two owners of the same memory the later counts: a model's parameter before that of an optimizer alone, and
        # a shard before the parameter that ZeRO-3 gathers in place.
        of_no_model = {
            parameter: Owner(MASTER, "", "", "", True) for parameter in of_optimizers if parameter not in of_models
        }
        owners = of_no_model | of_models
        shards = {parameter: parameter.ds_tensor for parameter in owners if hasattr(parameter, "ds_tensor")}
        for parameter in shards:
            yield parameter, owners[parameter]._replace(kind=GATHERED)
        for parameter, owner in owners.items():
            yield shards.get(parameter, parameter), owner
            yield parameter.grad, owner._replace(kind=GRADIENTS)
            for state in tensors_in(of_optimizers.get(parameter)):
                yield state, owner._replace(kind=OPTIMIZER)
        for model, label in list(self._labels.items()):
            for path, buffer in model.named_buffers():
                yield buffer, Owner(BUFFERS, label, model_tree.name_in(model, path), "", False)


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors with memory of their own: those inside of DTensor and of quantized weights, and the indices and
    values of a sparse gradient, for example. A lazy parameter has none yet."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    elif isinstance(tensor, torch.Tensor) and not is_lazy(tensor):
        if tensor.layout is torch.sparse_coo:
            yield from (tensor._indices(), tensor._values())
        elif tensor.layout is torch.strided:
            yield tensor
