"""Traces are kept on disk: what a rank does depends on the plan and the versions, not on when it is asked."""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from memlab.launch.environment import cache_dir, package_versions
from memlab.plan import Plan
from memlab.predict.events import Trace
from memlab.predict.interpolate import ENOUGH, interpolate
from memlab.predict.shadow.request import Point
from memlab.predict.shadow.request import traces as shadow_traces

IRRELEVANT = ("allocator", "measure", "name", "force", "seed", "seq_len", "mode")
"""What a trace does not depend on; (batch, tokens) are part of its file name."""


def traces(plan: Plan, ranks: Sequence[int], micro: int, tokens: int) -> dict[int, Trace]:
    """The traces of ``ranks`` at (micro, tokens): from the disk, computed from those there, or from a new shadow
    run."""
    folder = trace_folder(plan)
    points = [Point(rank, micro, tokens) for rank in ranks]
    found = {point: known(folder, point) for point in points}
    missing = [point for point, trace in found.items() if trace is None]
    if missing:
        found |= shadow(plan, missing)
    return {point.rank: trace for point, trace in found.items()}


def prepare(plan: Plan, ranks: Sequence[int], shapes: Sequence[tuple[int, int]]) -> None:
    """Trace in one process what several (batch, tokens) need: all of a few; of many, some that decide the others."""
    chosen = sorted(set(shapes), key=lambda shape: (shape[0] * shape[1], shape))
    if len(chosen) > ENOUGH + 1:
        chosen = [chosen[0], chosen[1], chosen[len(chosen) // 2], chosen[-1]]
    folder = trace_folder(plan)
    missing = [point for shape in chosen for rank in ranks if known(folder, point := Point(rank, *shape)) is None]
    if missing:
        shadow(plan, missing)


def trace_folder(plan: Plan) -> Path:
    folder = cache_dir() / "traces" / _fingerprint(plan)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def known(folder: Path, point: Point) -> Trace | None:
    """The trace of a point if it was made, or can be computed from the others of its rank."""
    if (folder / point.file_name).exists():
        return Trace.load(folder / point.file_name)
    others = sorted(folder.glob(Point.prefix(point.rank) + "*"))
    if len(others) < ENOUGH:
        return None
    return interpolate([Trace.load(path) for path in others], point.micro, point.tokens)


def shadow(plan: Plan, points: Sequence[Point]) -> dict[Point, Trace]:
    """Trace points and keep the traces, each whole or not at all."""
    folder = trace_folder(plan)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        found = shadow_traces(plan, points, Path(scratch))
        for point in points:
            (Path(scratch) / point.file_name).replace(folder / point.file_name)
    return found


def _fingerprint(plan: Plan) -> str:
    config = {key: value for key, value in plan.config.items() if key not in IRRELEVANT}
    config["batch"] = {"accumulation": plan.config["batch"]["accumulation"]}
    hardware = {key: plan.config["hardware"][key] for key in ("gpu", "gpus", "memory_gib", "device")}
    facts = [{**config, "hardware": hardware}, package_versions(), _model_files(plan), _own_code()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _model_files(plan: Plan) -> str:
    """The configuration of a model in a folder may change while its path stays."""
    path = Path(plan.config["model"]["path"]) / "config.json"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _own_code() -> str:
    """A trace is as good as the code that made it."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parent / "shadow").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
