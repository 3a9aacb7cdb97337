"""Files of weights and states, written and read: torch.save, safetensors, distributed checkpoints."""

from types import ModuleType

import torch

from ..phases import LOAD, SAVE
from ..session import Session
from .wrap import during


def listen_to_torch(session: Session) -> None:
    during(torch.serialization, session, {"save": SAVE, "load": LOAD})
    torch.save, torch.load = torch.serialization.save, torch.serialization.load


def listen_to_safetensors(module: ModuleType, session: Session) -> None:
    during(module, session, {"save_file": SAVE, "load_file": LOAD})


def listen_to_distributed_checkpoints(module: ModuleType, session: Session) -> None:
    during(module, session, {"save": SAVE, "async_save": SAVE, "load": LOAD})
