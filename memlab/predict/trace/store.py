"""Traces on disk. A trace depends on the plan and the versions alone, so plans share traces.

Each group of plans that share traces has a folder, with a file for each traced rank, batch and length.
"""

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from memlab.core.config import to_dict
from memlab.core.plan import Plan
from memlab.files.cache_folder import cache_folder
from memlab.predict.trace.code_digest import code_digest
from memlab.predict.trace.micro_steps import with_few
from memlab.predict.trace.shadow_process import TraceKey
from memlab.predict.trace.trace_format import Trace
from memlab.system.environment import versions_used

IRRELEVANT = ("allocator", "measure", "name", "force", "seed", "seq_len", "mode", "predict")
"""Configuration groups that do not change the trace folder. Batch and tokens are part of the trace's file name."""

IN_MEMORY = 16
"""Traces that this process keeps in memory, a few MB each: the traces of one configuration."""


def trace_folder(plan: Plan) -> Path:
    """Return the folder of the traces of ``plan``. Plans that share traces share this folder."""
    return folder_of_exact(with_few(plan))


def folder_of_exact(plan: Plan) -> Path:
    """Return the folder of traces that have all micro-steps of ``plan``."""
    return cache_folder("traces") / _fingerprint(plan)


def traced(folder: Path, rank: int) -> dict[TraceKey, Path]:
    """Return the traces of a rank in a folder, each with its file."""
    files = sorted(folder.glob(TraceKey.prefix(rank) + "*"))
    return {TraceKey.of_file(path.name): path for path in files}


@lru_cache(maxsize=IN_MEMORY)
def load(path: Path) -> Trace:
    return Trace.load(path)


def _fingerprint(plan: Plan) -> str:
    config = {key: value for key, value in to_dict(plan.config).items() if key not in IRRELEVANT}
    config["batch"] = {"accumulation": plan.config.batch.accumulation}
    hardware = {key: getattr(plan.config.hardware, key) for key in ("gpu", "gpus", "nodes", "memory_gib", "device")}
    code = [code_digest("trace"), code_digest("outside")]  # scripts see sizes of the latter (torch.cuda.mem_get_info)
    facts = [{**config, "hardware": hardware}, versions_used(plan), _model_files(plan), *code]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _model_files(plan: Plan) -> str:
    """Return the ``config.json`` of a model in a local folder, which may change while its path stays; else ``""``."""
    path = Path(plan.config.model.path) / "config.json"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
