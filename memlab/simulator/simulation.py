"""Settings of a simulation, and what its processes note for memlab: files in the one folder that they share."""

import faulthandler
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import memlab
from memlab.files.regular_file import read_end
from memlab.meters import install
from memlab.simulator.trace.trace_format import CHOICES

BOOTSTRAP = Path(__file__).with_name("rank") / "bootstrap"
"""Folder of the bootstrap, for PYTHONPATH: it holds nothing else."""

VARIABLE = "MEMLAB_SIMULATION"
"""Names the folder with the request in every process of the command."""

SEED = 1
"""Seed of torch in a script that sets none itself, so that two predictions are equal."""

_REQUEST, _REFUSAL, _STACK, _ALL_RANKS, _CHOICE = "simulation.json", "refusal.txt", ".stack", "all_ranks", "choice_"

MOST_WORDS = 1 << 16
"""Bytes of a refusal or a stack that are read."""

MOST_RANKS = 8
"""Most ranks that run where ranks differ. The progress display counts the steps of at most so many ranks, too."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a simulated process: real GPUs are hidden, and one core is used.

    The hash seed is fixed, unless ``environ`` has one: the order of sets of strings decides the order in which some
    models allocate (transformers' Gemma 3 iterates over a set), and a prediction is to be the same each time.
    """
    hidden = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cuda", "OMP_NUM_THREADS": "1"}
    return {"PYTHONHASHSEED": "0", **environ, **hidden}


def own_folder() -> Path:
    """The folder that this process of the command and memlab share."""
    return Path(os.environ[VARIABLE])


@dataclass(frozen=True)
class Node:
    """The GPUs of each node: their name, their number and the memory of each."""

    gpu: str
    gpus: int
    memory_bytes: int


@dataclass(frozen=True)
class Simulation:
    """Settings of a simulation, shared with the command's processes by a file.

    ``steps``: end after this many optimizer steps. ``other_end``: the choice that is made the other way round
    (rank/choices.py). ``timeout_s``: seconds from ``started_at`` on, after which the command is ended.
    """

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


def ask_for_all_ranks() -> NoReturn:
    """Note that the ranks differ, and end this process: see :class:`RanksDiffer`."""
    (own_folder() / _ALL_RANKS).touch()
    os._exit(1)


def note_choice(choice: str) -> None:
    """Note that the script of this process has made a choice (rank/choices.py)."""
    if VARIABLE in os.environ:
        (own_folder() / f"{_CHOICE}{choice}").touch()


def want_all_ranks(own: Path) -> bool:
    """Return whether a process of the command has noted that the ranks differ."""
    return (own / _ALL_RANKS).exists()


def noted_choices(own: Path) -> list[str]:
    """Return the choices that the command, which may run, has noted."""
    return [choice for choice in CHOICES if (own / f"{_CHOICE}{choice}").exists()]


def refusal(own: Path) -> str | None:
    """Return why a process of the command could not have simulated GPUs; ``None`` if none said so."""
    return read_end(own / _REFUSAL, MOST_WORDS) or None


def lines_where_time_ended(own: Path) -> list[str]:
    """Return ``file:line`` of the innermost line of the script in each process that wrote its stack, as Python's
    ``faulthandler`` does: the main thread last, its innermost frame first."""
    stacks = (read_end(path, MOST_WORDS) for path in sorted(own.glob(f"*{_STACK}")))
    frames = (_FRAME.findall(stack.rpartition("Thread ")[2]) for stack in stacks)
    own_frames = ([frame for frame in each if not _NOT_THE_SCRIPT.search(frame[0])] or each for each in frames)
    return [":".join(each[0]) for each in own_frames if each]


_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_OWN = re.escape(str(Path(memlab.__file__).parent))
_NOT_THE_SCRIPT = re.compile(rf"^<|/(site|dist)-packages/|/lib/python3\.\d+/|^{_OWN}/")
