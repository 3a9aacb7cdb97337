"""Traces on disk. A trace depends on the plan and the versions alone, so plans share traces.

Each group of plans that share traces has a folder, with a file for each traced rank, batch and length. A traced rank
represents all ranks that do not differ from it. A cached result is valid only for the code that made it.
"""

import ast
import hashlib
import json
from functools import cache, lru_cache
from pathlib import Path

import memlab
from memlab.core.config_values import to_dict
from memlab.core.plan import NOT_MEASURED, Plan
from memlab.files.disk import cache_folder, write_whole
from memlab.prediction.traces.micro_steps import TRACED
from memlab.simulator.trace.trace_format import Trace
from memlab.system.environment import versions_used
from memlab.training.simulated.shadow_process import TraceKey

MEMLAB = Path(memlab.__file__).parent

OF_TRACES = ("meters", "simulator", "training")
"""Folders of memlab whose code decides what is in a trace."""

OF_PREDICTIONS = (*OF_TRACES, "prediction")


@cache
def code_digest(folders: tuple[str, ...] = OF_PREDICTIONS) -> str:
    """Return a digest of the code in folders of memlab, with the sizes and ratios that are shipped beside it as JSON.
    Docstrings and comments are left out, because no result depends on them.

    Parsing takes 0.1 s, so the digest is kept in the cache under the digest of the whole files.
    """
    files = [file for folder in folders for file in sorted((MEMLAB / folder).rglob("*.*"))]
    modules, tables = ([file.read_bytes() for file in files if file.suffix == suffix] for suffix in (".py", ".json"))
    if not (kept := cache_folder("code") / _digest([*modules, *tables])).exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, _digest([*map(code_of, modules), *tables]).encode())
    return kept.read_text()


@cache  # two digests have most modules in common
def code_of(source: bytes) -> bytes:
    """Return the syntax tree of a module without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return ast.dump(tree).encode()


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a text alone: a docstring, of an attribute too."""
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def _digest(parts: list[bytes]) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def traced_ranks(plan: Plan) -> list[int]:
    """Return the ranks to trace.

    Stages 0 and 3 need one rank. Without ZeRO all ranks hold the same; at stage 3 every rank holds ceil(n / ranks)
    elements of every parameter, padding included. Stages 1 and 2 need up to three ranks, because they cut the flattened
    parameters anywhere: the first rank owns the embedding, the last the head, and the norms and copies of whole
    parameters follow them.
    """
    if plan.deepspeed["zero_optimization"]["stage"] in (0, 3):
        return [0]
    return sorted({0, plan.world_size // 2, plan.world_size - 1})


def stands_for(rank: int, traced: list[int]) -> int:
    """Return the traced rank that represents ``rank``: ``rank`` itself, else the middle or the only traced rank."""
    return rank if rank in traced else traced[len(traced) // 2]


IRRELEVANT = (*NOT_MEASURED, "allocator", "measure", "mode", "own", "seed", "seq_len")
"""Configuration groups that do not change the trace folder. Batch and tokens are part of the trace's file name."""

IN_MEMORY = 16
"""Traces that this process keeps in memory, a few MB each: the traces of one configuration."""


def trace_folder(plan: Plan) -> Path:
    """Return the folder of the traces of ``plan``, with few micro-steps. Plans that share traces share this folder."""
    return _folder(plan, min(plan.config.batch.accumulation, TRACED))


def folder_of_exact(plan: Plan) -> Path:
    """Return the folder of traces that have all micro-steps of ``plan``."""
    return _folder(plan, plan.config.batch.accumulation)


def traced(folder: Path, rank: int) -> dict[TraceKey, Path]:
    """Return the traces of a rank in a folder, each with its file."""
    return {TraceKey.of_file(path.name): path for path in sorted(folder.glob(TraceKey.prefix(rank) + "*"))}


@lru_cache(maxsize=IN_MEMORY)
def load(path: Path) -> Trace:
    return Trace.load(path)


def _folder(plan: Plan, micro_steps: int) -> Path:
    config = {key: value for key, value in to_dict(plan.config).items() if key not in IRRELEVANT}
    config["batch"] = {"accumulation": micro_steps}
    hardware = {key: getattr(plan.config.hardware, key) for key in ("gpu", "gpus", "nodes", "memory_gib", "device")}
    facts = [{**config, "hardware": hardware}, versions_used(plan), _model_files(plan), code_digest(OF_TRACES)]
    return cache_folder("traces") / hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _model_files(plan: Plan) -> str:
    """Return the ``config.json`` of a model in a local folder, which may change while its path stays; else ``""``."""
    path = Path(plan.config.model.path) / "config.json"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
