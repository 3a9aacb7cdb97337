"""Simulated GPUs of a command, as its processes read of them: in a file of the run folder."""

import faulthandler
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import memlab
from memlab.attach import install

VARIABLE = "MEMLAB_SIMULATION"
"""Names the folder with the request in every process of the command."""

_REQUEST, _REFUSAL, _STACK = "simulation.json", "refusal.txt", ".stack"


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
    round (shadow/choices.py). ``timeout_s``: seconds from ``started_at`` on, after which the command is ended."""

    folder: str
    node: Node
    steps: int | None
    started_at: float
    other_end: str | None = None
    timeout_s: float | None = None

    def write(self, own: Path) -> None:
        (own / _REQUEST).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def of_this_process(cls) -> "Simulation":
        values = json.loads((own_folder() / _REQUEST).read_text(encoding="utf-8"))
        return cls(**{**values, "node": Node(**values["node"])})

    def tell_where_time_ends(self) -> None:
        """Let this process write where it is into a file of its own, when the time of the command is over."""
        if self.timeout_s is not None:
            file = (own_folder() / f"{os.getpid()}{_STACK}").open("w")
            faulthandler.dump_traceback_later(max(self.started_at + self.timeout_s - time.time(), 0.1), file=file)

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


def lines_where_time_ended(own: Path) -> list[str]:
    """Return ``file:line`` of the innermost line of the script in each process that wrote its stack, as Python's
    ``faulthandler`` does: the main thread last, its innermost frame first."""
    stacks = (path.read_text(encoding="utf-8", errors="replace") for path in sorted(own.glob(f"*{_STACK}")))
    frames = (_FRAME.findall(stack.rpartition("Thread ")[2]) for stack in stacks)
    own_frames = ([frame for frame in each if not _NOT_THE_SCRIPT.search(frame[0])] or each for each in frames)
    return [":".join(each[0]) for each in own_frames if each]


_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_OWN = re.escape(str(Path(memlab.__file__).parent))
_NOT_THE_SCRIPT = re.compile(rf"^<|/(site|dist)-packages/|/lib/python3\.\d+/|^{_OWN}/")
