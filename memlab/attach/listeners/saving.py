"""Files of weights and states, written and read: torch.save, safetensors, distributed checkpoints."""

from types import ModuleType

import torch

from ..phases import LOAD, SAVE
from ..session import Session
from .wrap import during


def listen_to_torch(session: Session) -> None:
    for name, phase in (("save", SAVE), ("load", LOAD)):
        during(torch.serialization, name, session, phase)
        setattr(torch, name, getattr(torch.serialization, name))


def listen_to_safetensors(module: ModuleType, session: Session) -> None:
    for name, phase in (("save_file", SAVE), ("load_file", LOAD)):
        during(module, name, session, phase)


def listen_to_distributed_checkpoints(module: ModuleType, session: Session) -> None:
    for name, phase in (("save", SAVE), ("async_save", SAVE), ("load", LOAD)):
        during(module, name, session, phase)
