"""Simulated GPUs of a command, as its processes read of them: in a file of the run folder."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from memlab.attach import install

VARIABLE = "MEMLAB_SIMULATION"
"""Names the folder with the request in every process of the command."""

_REQUEST, _REFUSAL = "simulation.json", "refusal.txt"


def own_folder() -> Path:
    """The folder that this process of the command and memlab share. The command has no other that it may write to."""
    return Path(os.environ[VARIABLE])


@dataclass(frozen=True)
class Node:
    """The GPUs of each node: their name, their number and the memory of each."""

    gpu: str
    gpus: int
    memory_bytes: int


@dataclass(frozen=True)
class Simulation:
    """What every process of the command has to know. ``folder`` receives the files of the ranks: see memlab.attach and
    :class:`Trace`. ``steps``: end after this many optimizer steps. ``other_end``: the choice that is made the other way
    round (shadow/choices.py)."""

    folder: str
    node: Node
    steps: int | None
    started_at: float
    other_end: str | None = None

    def write(self, own: Path) -> None:
        (own / _REQUEST).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def of_this_process(cls) -> "Simulation":
        values = json.loads((own_folder() / _REQUEST).read_text(encoding="utf-8"))
        return cls(**{**values, "node": Node(**values["node"])})

    def note_loaded(self) -> None:
        """Note that a process of the command has simulated GPUs."""
        (own_folder() / install.LOADED).touch()


def refuse(why: str) -> NoReturn:
    """Note why this process of the command cannot have simulated GPUs, and end it: it must not train for real."""
    (own_folder() / _REFUSAL).write_text(why, encoding="utf-8")
    os._exit(1)


def refusal(own: Path) -> str | None:
    """Return why a process of the command could not have simulated GPUs; ``None`` if none said so."""
    file = own / _REFUSAL
    return file.read_text(encoding="utf-8") if file.exists() else None
