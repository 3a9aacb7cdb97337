"""Adoption of objects that a process made before memlab began to listen: optimizers, engines, Trainer, Accelerator."""

import gc
import sys
from typing import Any

import torch

from ..phases import ENGINE_INIT
from ..session import Session


def adopt(session: Session) -> None:
    """Let the session know of them, as if it had heard of their making."""
    engine = _class("deepspeed", "DeepSpeedEngine")
    trainer = _class("transformers.trainer", "Trainer")
    accelerator = _class("accelerate.accelerator", "Accelerator")
    for each in gc.get_objects():
        kind = type(each)
        # accelerate's and DeepSpeed's wrappers call themselves optimizers and have no hooks.
        if issubclass(kind, torch.optim.Optimizer) and "_optimizer_step_pre_hooks" in vars(each):
            session.timeline.base = ENGINE_INIT
            session.optimizer_made(each)
        elif issubclass(kind, engine):
            session.objects.add_engine(each)
        elif issubclass(kind, trainer) and each.is_in_train:
            session.objects.trainer, session.trainer_runs = each, True
        elif issubclass(kind, accelerator):
            session.objects.accelerator = each


def _class(module: str, name: str) -> Any:
    """Return a class of a library; an empty tuple, which has no subclass, if the library is not imported."""
    return getattr(sys.modules.get(module), name, ())
