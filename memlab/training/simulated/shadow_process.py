"""The shadow process: what to trace is requested from it as plain data, so that this process does not import torch."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from memlab.core.config import Config
from memlab.core.optimizers import package_of
from memlab.core.plan import Plan
from memlab.simulator.last_exception import last_exception
from memlab.simulator.simulation import environment
from memlab.system.environment import own_variables
from memlab.system.machine import Machine

STEPS = 2
"""Steps of a shadow run. The first step creates the optimizer states. The second is like all later ones: ZeRO-3
prefetches from then on."""


LOG = "shadow.log"

POLL_S = 0.2


@dataclass(frozen=True, order=True)
class TraceKey:
    """Key of one trace of a plan: a rank that trains on batches of ``micro`` samples of ``tokens`` tokens."""

    rank: int
    micro: int
    tokens: int

    @property
    def file_name(self) -> str:
        return f"{self.prefix(self.rank)}b{self.micro}-s{self.tokens}.trace.json"

    @classmethod
    def of_file(cls, name: str) -> "TraceKey":
        rank, micro, tokens = re.findall(r"\d+", name)
        return cls(int(rank), int(micro), int(tokens))

    @staticmethod
    def prefix(rank: int) -> str:
        """The prefix of the file names of a rank's traces."""
        return f"rank{rank}-"


@dataclass(frozen=True, eq=False)
class Task:
    """A trace to make. ``path`` is its file, which is written whole or not at all."""

    plan: Plan
    key: TraceKey
    path: Path


@dataclass
class EngineStart:
    """Points of one rank of one plan, which share one engine start. ``shapes``: micro batch, tokens and path of the
    trace of each point."""

    plan: int  # index in ``Request.plans``
    rank: int
    shapes: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def log(self) -> str:
        """The file name of the log of the engine start."""
        return f"plan{self.plan}-rank{self.rank}.log"

    def log_of(self, path: str) -> str:
        """The file name of the log of the point whose trace is ``path``."""
        return f"plan{self.plan}-{Path(path).name}.log"


@dataclass
class Request:
    """All traces that one shadow process makes.

    ``folder`` receives logs and files that libraries write. ``cpu_limit_s``: limit in seconds of CPU time, for each
    engine start and for each point. ``needless``: packages that the process does without.
    """

    folder: str
    plans: list[dict[str, Any]]
    starts: list[EngineStart]
    steps: int = STEPS
    cpu_limit_s: int | None = None
    needless: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, tasks: Sequence[Task], folder: Path, cpu_limit_s: int | None = None) -> "Request":
        plans = {id(task.plan): task.plan for task in tasks}
        numbers = {key: number for number, key in enumerate(plans)}
        starts: dict[tuple[int, int], EngineStart] = {}
        for task in tasks:
            key = numbers[id(task.plan)], task.key.rank
            shape = (task.key.micro, task.key.tokens, str(task.path))
            starts.setdefault(key, EngineStart(*key)).shapes.append(shape)
        of_plans = [plan.to_json() for plan in plans.values()]
        needless = needless_packages([plan.config for plan in plans.values()])
        return cls(str(folder), of_plans, list(starts.values()), cpu_limit_s=cpu_limit_s, needless=needless)

    def save(self) -> Path:
        path = Path(self.folder) / "request.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> "Request":
        values = json.loads(path.read_text(encoding="utf-8"))
        values["starts"] = [EngineStart(**start) for start in values["starts"]]
        return cls(**values)


def needless_packages(configs: Sequence[Config]) -> list[str]:
    """Return the optional packages that no configuration uses. transformers and peft would import them, which takes a
    quarter of the time of all imports. Without them a rank runs as if they were not installed. A model with code of its
    own may use any package."""
    needed: set[str | None] = set()
    for config in configs:
        needed |= {
            package_of(config.optimizer.source, config.optimizer.name),
            "datasets" if config.data.source != "random" else None,
            "peft" if config.adapter.method != "none" else None,
            "bitsandbytes" if config.adapter.method == "qlora" else None,
        }
    has_own_code = any(config.model.trust_remote_code for config in configs)
    return [] if has_own_code else sorted({"datasets", "peft", "bitsandbytes"} - needed)


def run_shadow(
    tasks: Sequence[Task],
    folder: Path,
    on_progress: Callable[[int], None] = lambda done: None,
    cpu_limit_s: int | None = None,
) -> list[tuple[Task, str]]:
    """Make the traces in one separate process that works in ``folder``, as many at a time as there are cores.

    Calls ``on_progress`` every ``POLL_S`` seconds with the number of finished traces. ``cpu_limit_s`` as in
    :class:`Request`. Returns the failed tasks, each with its exception. Finished traces stay on disk after an
    interruption.
    """
    request = Request.of(tasks, folder, cpu_limit_s)
    words = [sys.executable, "-m", "memlab.training.simulated", str(request.save())]
    with (folder / LOG).open("wb") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, env=_environment(tasks[0].plan), start_new_session=True
        )
        try:
            while process.poll() is None:
                on_progress(sum(task.path.exists() for task in tasks))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    starts = {path: start for start in request.starts for *_, path in start.shapes}
    failed = [task for task in tasks if not task.path.exists()]
    return [(task, _reason_of_failure(folder, starts[str(task.path)], str(task.path))) for task in failed]


def _reason_of_failure(folder: Path, start: "EngineStart", path: str) -> str:
    """Find the reason of a failure in the most specific log that is not empty: point, engine start, process."""
    logs = [folder / start.log_of(path), folder / start.log, folder / LOG]
    return last_exception(next((log for log in logs if log.exists() and log.stat().st_size), folder / LOG))


def _environment(plan: Plan) -> dict[str, str]:
    """Return the environment of the shadow process: as in a rank, without variables for the GPU's allocator."""
    return {
        **environment({**os.environ, **variables(plan)}),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",  # must be set, is never opened
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
        "LOCAL_RANK": "0",
        "RANK": "0",
    }


def variables(plan: Plan) -> dict[str, str]:
    """The environment variables that depend on the plan."""
    own = {name: value for name, value in own_variables(plan, Machine()).items() if "ALLOC_CONF" not in name}
    return {**own, "WORLD_SIZE": str(plan.world_size), "LOCAL_SIZE": str(plan.world_size)}
