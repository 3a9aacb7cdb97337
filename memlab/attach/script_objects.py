"""Objects that the script made, as listeners heard of them. None is kept alive."""

import weakref
from collections.abc import Callable
from typing import Any

import torch


class ScriptObjects:
    """Optimizers, DeepSpeed's engines, and the last Trainer and Accelerator. ``None``: there is none, or none any
    more."""

    def __init__(self):
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._engines: list[weakref.ref] = []
        self._trainer: Callable[[], Any] = lambda: None
        self._accelerator: Callable[[], Any] = lambda: None

    @property
    def engines(self) -> list[Any]:
        return [engine for engine in (ref() for ref in self._engines) if engine is not None]

    def add_engine(self, engine: Any) -> None:
        self._engines.append(weakref.ref(engine))

    @property
    def trainer(self) -> Any:
        return self._trainer()

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)

    @property
    def accelerator(self) -> Any:
        return self._accelerator()

    @accelerator.setter
    def accelerator(self, accelerator: Any) -> None:
        self._accelerator = weakref.ref(accelerator)

    def train(self, module: torch.nn.Module) -> bool:
        """Whether an optimizer holds parameters of the module, or an engine trains it: ZeRO's optimizer has shards."""
        if any(engine.module is module for engine in self.engines if trains(engine)):
            return True
        trained = {id(p) for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]}
        return any(id(parameter) in trained for parameter in module.parameters())


def trains(engine: Any) -> bool:
    """Whether DeepSpeed's engine has an optimizer: TRL gives a reference model an engine that has none."""
    return getattr(engine, "basic_optimizer", None) is not None
