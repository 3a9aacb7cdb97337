"""Objects that the script made, as listeners heard of them. None is kept alive."""

import weakref
from typing import Any

import torch


class _Weak:
    """An attribute that does not keep its value alive. ``None``: it has none, or the value is gone."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        return getattr(instance, self._name, lambda: None)()

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self._name, weakref.ref(value))


class ScriptObjects:
    """Optimizers, DeepSpeed's engines, and the last Trainer and Accelerator. ``None``: there is none, or none any
    more."""

    trainer, accelerator = _Weak(), _Weak()

    def __init__(self):
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._engines: list[weakref.ref] = []

    @property
    def engines(self) -> list[Any]:
        return [engine for engine in (ref() for ref in self._engines) if engine is not None]

    def add_engine(self, engine: Any) -> None:
        self._engines.append(weakref.ref(engine))

    def train(self, module: torch.nn.Module) -> bool:
        """Whether an optimizer holds parameters of the module, or an engine trains it: ZeRO's optimizer has shards."""
        if any(engine.module is module for engine in self.engines if trains(engine)):
            return True
        trained = {id(p) for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]}
        return any(id(parameter) in trained for parameter in module.parameters())


def trains(engine: Any) -> bool:
    """Whether DeepSpeed's engine has an optimizer: TRL gives a reference model an engine that has none."""
    return getattr(engine, "basic_optimizer", None) is not None
