"""What a shadow process is asked for. Plain data: the asking side imports no torch."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memlab.errors import MemlabError
from memlab.launch.environment import own_variables
from memlab.machine import Machine
from memlab.plan import Plan
from memlab.predict.events import Trace

STEPS = 2
"""The first step makes the optimizer states, the second is like all others: ZeRO-3 prefetches from then on."""


LOG = "shadow.log"


class ShadowError(MemlabError):
    """The model or the engine cannot be run on the device that is not there. The message is the exception's."""


@dataclass(frozen=True, order=True)
class Point:
    """One trace: a rank at ``micro`` samples of ``tokens`` tokens."""

    rank: int
    micro: int
    tokens: int

    @property
    def file_name(self) -> str:
        return f"{self.prefix(self.rank)}b{self.micro}-s{self.tokens}.trace.json"

    @staticmethod
    def prefix(rank: int) -> str:
        """What the file names of a rank's traces begin with."""
        return f"rank{rank}-"


@dataclass
class Request:
    folder: str
    plan: dict[str, Any]
    points: list[Point]
    steps: int = STEPS

    def save(self) -> Path:
        path = Path(self.folder) / "request.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> "Request":
        values = json.loads(path.read_text(encoding="utf-8"))
        values["points"] = [Point(**point) for point in values["points"]]
        return cls(**values)


def traces(plan: Plan, points: Sequence[Point], folder: Path) -> dict[Point, Trace]:
    """Trace ``points`` of ``plan`` in a process of its own, which works in ``folder``.

    Raises :class:`ShadowError` when the model or the engine cannot be run.
    """
    request = Request(str(folder), plan.to_json(), list(points))
    with (folder / LOG).open("wb") as output:
        words = [sys.executable, "-m", "memlab.predict.shadow", str(request.save())]
        process = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, env=_environment(plan))
    if process.returncode:
        raise ShadowError(_what_was_raised((folder / LOG).read_text(errors="replace")))
    return {point: Trace.load(folder / point.file_name) for point in points}


def _what_was_raised(log: str) -> str:
    """The line of the last traceback that names the exception."""
    lines = [line for line in log.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    last_words = lines or [line for line in log.splitlines() if line.strip()]
    return last_words[-1][:500] if last_words else "its log is empty"


def _environment(plan: Plan) -> dict[str, str]:
    """The variables of a rank, but for what would start a real device or its allocator."""
    own = {name: value for name, value in own_variables(plan, Machine()).items() if "ALLOC_CONF" not in name}
    return {
        **os.environ,
        **own,
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",  # until the shadow's own accelerator takes its place
        "ACCELERATE_TORCH_DEVICE": "shadow:0",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",  # required by name, never opened
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_SIZE": str(plan.world_size),
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
        "LOCAL_RANK": "0",
        "RANK": "0",
    }
