"""The file of a rank: its number, its place, and its content."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..files.redaction import known_secrets, redact_values
from . import own_errors
from .facts import gather
from .facts.machine import runtime_versions
from .host_probe import probe_host
from .install import FOLDER
from .memory import HOST, pinned_peak_bytes
from .options import MeterOptions
from .phases import ENGINE_INIT, MODEL_BUILD
from .session import Session

VERSION = 1

RANKS_OF_NODE = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE")
"""Variables that may hold the number of ranks on this node: of torchrun, DeepSpeed, Open MPI and Slurm."""

RUNNING = {"status": "interrupted", "reason": "The process was killed, or it still runs.", "ended": "running"}


class RankFile:
    """Writes what a session knows. The place is chosen with the first writing, when the rank's number is known."""

    def __init__(self, session: Session):
        self.session = session
        self.before_end: list[Callable[[], None]] = []  # each ends a recorder, which writes files of its own
        self.options: MeterOptions | None = None  # of the measurement that the place belongs to
        self.rank: int | None = None
        self.world_size = 1  # as long as torch.distributed was there to tell: a script may end it before itself
        self.path: Path | None = None
        self.host_probe: dict[str, float] | None = None

    def write(self, outcome: dict[str, Any]) -> None:
        """Write the file, whole or not at all, without secrets."""
        path = self.place()
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        content = redact_values(self._content(outcome), known_secrets())
        temporary.unlink(missing_ok=True)
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)  # what is left on a full disk

    def place(self) -> Path:
        """Return the path of the file. The first call of a measurement claims the number of this rank: a process that
        is not the first one with this number gets a folder of its own."""
        if self.path is not None and self.options is self.session.options:
            return self.path
        self.options = self.session.options
        self.rank, folder = rank_number(), Path(self.options.folder)
        claim = folder / FOLDER / f"rank{self.rank}.pid"
        claim.parent.mkdir(parents=True, exist_ok=True)
        try:
            with claim.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            folder = folder / FOLDER / "again" / str(os.getpid())
            folder.mkdir(parents=True)
        self.path = folder / f"rank{self.rank}.json"
        self.session.rows.open(self.path.with_suffix(".steps.jsonl"))
        return self.path

    def write_at_the_end(self, error: BaseException | None) -> None:
        """Write the file when measuring ends. ``error``: what ended it. Then the session hears nothing any more."""
        session = self.session
        for end in self.before_end:
            end()
        session.finish(error)
        gather(session)
        outcome = session.outcome(error)
        probes = session.options.probes_host and not _number("LOCAL_RANK")
        if probes and outcome["status"] in ("ok", "gpu_oom"):
            self.host_probe = probe_host()
        self.write(outcome)
        session.end()

    def keep(self, names: Iterable[str]) -> None:
        """Keep the present values of these figures: later steps no longer change them."""
        now = self._content(RUNNING)
        self.session.given |= {name: now[name] for name in names}

    def _content(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the file (meters/__init__.py)."""
        session, device = self.session, self.session.memory.device
        figures, total = session.figures, session.figures.total
        retries, ooms = figures.failed()
        names = ("peak_allocated_bytes", "peak_reserved_bytes", "end_allocated_bytes")
        phases = {phase: {name: getattr(each, name) or 0 for name in names} for phase, each in figures.phases.items()}
        properties: Any = None if device is None else torch.cuda.get_device_properties(device)
        warmup = session.options.warmup or 1
        seconds = session.rows.seconds if outcome["ended"] != "running" else []  # many, and the rows have them
        trained: dict[str, Any] = next((model for model in session.facts.get("models", ()) if model["trained"]), {})
        return {
            "rank": self.rank,
            "device": "cpu" if device is None else f"cuda:{device}",
            "device_name": "CPU" if device is None else properties.name,
            "memory_source": session.memory.source,
            "status": outcome["status"],
            "reason": outcome.get("reason"),
            "device_total_bytes": None if device is None else properties.total_memory,
            "peak_allocated_bytes": total.peak_allocated_bytes,
            "peak_active_bytes": total.peak_active_bytes,
            "peak_reserved_bytes": total.peak_reserved_bytes,
            "device_used_bytes": total.used_bytes,
            "host_rss_bytes": total.host_rss_bytes,
            "host_peak_bytes": total.host_peak_bytes,
            "host_pinned_bytes": pinned_peak_bytes(),
            "num_alloc_retries": retries,
            "num_ooms": ooms,
            "phases": {} if session.memory.source == HOST else phases,
            "warmup_seconds": [each for each in seconds[:warmup] if each is not None],
            "step_seconds": [each for each in seconds[warmup:] if each is not None],
            "skipped_steps": session.steps_skipped,
            "parameters": trained.get("parameters"),
            "trainable_parameters": trained.get("trainable_parameters"),
            "unknown": self._unknown(),
            "oom": outcome.get("oom"),
            "runtime": runtime_versions(),
            "host_probe": self.host_probe,
            "timing": self._timing(),
            "attached": self._attached(outcome),
            **session.given,
        }

    def _unknown(self) -> dict[str, str]:
        """Name the figures that could not be found out, with the reasons."""
        session = self.session
        reasons = {"losses": "A command's losses are not read: the host would wait for the device."}
        if session.memory.source == HOST:
            reasons["peak_allocated_bytes"] = "The process used no GPU: torch counts no memory of the host."
        if session.steps_recorded and not any(session.rows.seconds):
            reasons["step_seconds"] = "Torch's memory history was recorded in every step, which slows them."
        if not any(model["trained"] for model in session.facts.get("models", ())):
            reasons["parameters"] = "No module was found that holds the parameters of the optimizer."
        if ENGINE_INIT not in session.figures.phases:
            reasons["engine_init"] = (
                "Nothing showed where the making of the optimizer ended and the first forward began."
            )
        return {name: why for name, why in reasons.items() if name not in session.given} | session.unknown

    def _timing(self) -> dict[str, float]:
        session, began = self.session, self.session.options.started_at
        timing = {"launch_s": session.started - began} if began else {}
        for name, phase in (("build_s", MODEL_BUILD), ("init_s", ENGINE_INIT)):
            if (peaks := session.figures.phases.get(phase)) and peaks.seconds:
                timing[name] = peaks.seconds
        if session.steps_done:
            timing["train_s"] = sum(each for each in session.rows.seconds if each is not None)
        return timing

    def _attached(self, outcome: dict[str, Any]) -> dict[str, Any]:
        session = self.session
        self.world_size = dist.get_world_size() if _is_distributed() else _number("WORLD_SIZE") or self.world_size
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "rank": self.rank,
            "local_rank": _number("LOCAL_RANK"),
            "local_world_size": next(filter(None, map(_number, RANKS_OF_NODE)), None),
            "world_size": self.world_size,
            "protocol": session.options.protocol,
            **{name: outcome.get(name) for name in ("ended", "exit_code", "where", "failed_in", "failed_at")},
            "at": session.at if outcome["ended"] == "running" else None,
            "steps": session.steps_done,
            "recorded_steps": session.steps_recorded,
            "profiled_steps": list(filter(session.options.profiles, range(1, session.steps_done + 1))),
            "micro_batches": session.micro_batches,
            "peak": session.figures.peak,
            "growth": session.growth.facts(outcome["ended"]),
            "phases": {name: asdict(peaks) for name, peaks in session.figures.phases.items()},
            "other_devices": session.memory.others(),
            **session.facts,
            "meter_errors": own_errors.noted,
        }


def rank_number() -> int:
    """Return this process's rank: torch.distributed's, else that of the launcher, else 0."""
    return dist.get_rank() if _is_distributed() else _number("RANK") or 0


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").partition("(")[0]  # Slurm writes 2(x3): 2 ranks on each of 3 nodes
    return int(text) if text.isdigit() else None
