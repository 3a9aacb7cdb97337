"""Cache of traces on disk. A trace depends on the plan and the versions alone, so it can be used again."""

import atexit
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path

from memlab.core.config import to_dict
from memlab.core.plan import Plan, shape_of
from memlab.core.sizes import MIB
from memlab.files.disk import cache_dir, explain
from memlab.predict.trace.micro_steps import repeated, with_few
from memlab.predict.trace.ranks import traced_ranks
from memlab.predict.trace.request import Point, ShadowError, Task, make
from memlab.predict.trace.resize import ENOUGH, MINIMUM_TOKENS, UNCHECKED, Interpolator
from memlab.predict.trace.trace_format import Trace
from memlab.system.environment import versions_used

IRRELEVANT = ("allocator", "measure", "name", "force", "seed", "seq_len", "mode", "predict")
"""Configuration groups that do not change the trace folder. Batch and tokens are part of the trace's file name."""

FIRST_RANK = 0
"""The rank that is traced for every plan."""

TRACES, RANKS = 16, 48
"""How many traces and interpolators this process keeps in memory, a few MB each: the traces of one configuration, and
an interpolator for each rank of the configurations in a search."""

ROOM = 64 * MIB
"""Bytes. On a disk with less free space, the traces of one configuration may not fit, so nothing is kept there."""


def traces(plan: Plan) -> dict[int, Trace]:
    """Return the traces of the ranks that differ: read from disk, interpolated, or made by a new shadow run.

    Raises :class:`ShadowError` when the model or the engine cannot be run.
    """
    while (found := known_traces(plan)) is None:
        if failures := make_missing([plan]):
            raise ShadowError(failures[0][1])
    return found


def traces_in_launch(plans: Sequence[Plan]) -> list[dict[int, Trace]]:
    """Return the traces of plans that differ in shape alone. One shadow process makes the missing ones."""
    if failures := make_missing(deciding(plans)):
        raise ShadowError(failures[0][1])
    return [traces(plan) for plan in plans]


def deciding(plans: Iterable[Plan]) -> list[Plan]:
    """Choose the plans that must be traced; the traces of the others are interpolated.

    If at most ``ENOUGH + 1`` plans share a trace folder, all of them are chosen, else four of them.
    """
    sharing: dict[Path, list[Plan]] = {}
    for plan in plans:
        sharing.setdefault(trace_folder(plan), []).append(plan)
    found = []
    for group in sharing.values():
        group.sort(key=lambda plan: plan.config.batch.micro * plan.config.seq_len.tokens)
        few = len(group) <= ENOUGH + 1
        found += group if few else [group[0], group[1], group[len(group) // 2], group[-1]]
    return found


def known_traces(plan: Plan) -> dict[int, Trace] | None:
    """Return the traces of the ranks that differ without a shadow run; ``None`` where one is needed."""
    found = {}
    for point in points(plan):
        found[point.rank] = known(plan, point)
        if found[point.rank] is None:
            return None
    return found


def points(plan: Plan) -> list[Point]:
    """Return the points whose traces a prediction of ``plan`` needs: one for each rank that differs."""
    micro, tokens = shape_of(plan.config)
    return [Point(rank, micro, tokens) for rank in traced_ranks(plan)]


def make_missing(
    plans: Iterable[Plan], told: Callable[[int, int], None] = lambda done, of: None
) -> list[tuple[Path, str]]:
    """Make the traces that are neither on disk nor can be interpolated, in one shadow process for all plans.

    Where a configuration has one trace already, a third point is traced with the requested one: three are enough to
    interpolate all others. ``told(done, of)`` reports progress. Returns the trace folders of the plans that failed,
    each with the reason.
    """
    tasks: dict[Path, Task] = {}
    leaders: dict[Path, Plan] = {}  # tasks with the same plan share one start of the engine
    for plan in plans:
        for point in points(plan):
            wanted = _to_trace(plan, point)
            if wanted is None:
                continue
            folder = _folder(wanted)
            asked = [task.point for task in tasks.values() if task.path.parent == folder]
            if _follows(point, [each for each in asked if each.rank == point.rank]):
                continue
            leader = leaders.setdefault(folder, wanted)
            for each in (point, *_also(_traced(folder, point.rank), point)):
                folder.mkdir(parents=True, exist_ok=True)
                tasks.setdefault(folder / each.file_name, Task(leader, each, folder / each.file_name))
    if not tasks:
        return []
    with tempfile.TemporaryDirectory(prefix="memlab-shadow-") as scratch:
        failed = make(list(tasks.values()), Path(scratch), lambda done: told(done, len(tasks)))
    return [(trace_folder(task.plan), reason) for task, reason in failed]


def trace_folder(plan: Plan) -> Path:
    """Return the folder of the traces of ``plan``. Plans that share traces share this folder."""
    return _folder(with_few(plan))


def kept(name: str) -> Path:
    """Return the folder ``name`` in the user's cache, or in a temporary folder of this process if the cache cannot be
    written."""
    return _writable(cache_dir()) / name


@cache
def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            if shutil.disk_usage(folder).free < ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return folder
    except OSError as error:
        print(f"memlab: {explain(error, folder)} Nothing that this prediction traces will be kept.", file=sys.stderr)
    own = tempfile.mkdtemp(prefix="memlab-cache-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


def known(plan: Plan, point: Point) -> Trace | None:
    """Return the trace of a point; ``None`` if a shadow run is needed.

    The trace is read from disk, interpolated from other points of its rank, or made longer from a trace with few
    micro-steps.
    """
    few = with_few(plan)
    found = _known_as_it_is(few, point)
    if few is plan or found is None:
        return found
    return repeated(found, plan.config.batch.accumulation) or _known_as_it_is(plan, point)


def _to_trace(plan: Plan, point: Point) -> Plan | None:
    """Return the plan to trace for the point; ``None`` if its trace is known.

    This is the plan with few micro-steps, or the plan itself if few micro-steps do not determine the rest.
    """
    few = with_few(plan)
    if not (_folder(few) / point.file_name).exists() and _known_as_it_is(few, point) is None:
        return few
    return None if few is plan or known(plan, point) else plan


def _folder(plan: Plan) -> Path:
    return kept("traces") / _fingerprint(plan)


def _known_as_it_is(plan: Plan, point: Point) -> Trace | None:
    """Return the trace of a point with all micro-steps of the plan, read or interpolated; ``None`` if neither works."""
    folder = _folder(plan)
    path = folder / point.file_name
    if path.exists():
        return _load(path)
    others = _traced(folder, point.rank)
    if len(others) >= ENOUGH:
        return _computed(others.values(), point, ENOUGH)
    first = _traced(folder, FIRST_RANK)
    if _follows(point, others) and len(first) >= ENOUGH and _computed(first.values(), point, ENOUGH):
        return _computed(others.values(), point, UNCHECKED)
    return None


def _computed(paths: Iterable[Path], point: Point, enough: int) -> Trace | None:
    return _interpolator(tuple(paths), enough).at(point.micro, point.tokens)


def _traced(folder: Path, rank: int) -> dict[Point, Path]:
    """Return the traced points of a rank, each with its file."""
    files = sorted(folder.glob(Point.prefix(rank) + "*"))
    return {Point.of_file(path.name): path for path in files}


def _follows(point: Point, others: Collection[Point]) -> bool:
    """Return whether ``others`` are enough to interpolate ``point`` on a rank other than rank 0.

    Two points with as many tokens are enough: both ranks run the same code, and rank 0's third point has verified the
    size formulas.
    """
    in_line = all(other.tokens == point.tokens >= MINIMUM_TOKENS for other in others)
    return point.rank != FIRST_RANK and len(others) == UNCHECKED and in_line


def _also(traced: Iterable[Point], wanted: Point) -> Sequence[Point]:
    """Return the points to trace besides ``wanted``, so that with the one traced point they make the size formulas
    unique. Empty unless exactly one usable point is traced.

    A further point has a larger batch than the two, and an odd length, which differs from every rounded length. One
    more is added where two points have the same number of tokens in the batch: a constant plus a slope for each token
    needs three different numbers.
    """
    usable = [point for point in traced if point.tokens >= MINIMUM_TOKENS]
    if len(usable) != ENOUGH - 2 or wanted.tokens < MINIMUM_TOKENS:
        return ()
    points = [*usable, wanted]
    tokens = max(min(point.tokens for point in points) * 7 // 8 | 1, MINIMUM_TOKENS)
    while len({point.micro * point.tokens for point in points}) < ENOUGH:
        points.append(Point(wanted.rank, max(point.micro for point in points) + 1, tokens))
    return points[UNCHECKED:]


@lru_cache(maxsize=TRACES)
def _load(path: Path) -> Trace:
    return Trace.load(path)


@lru_cache(maxsize=RANKS)
def _interpolator(paths: tuple[Path, ...], enough: int) -> Interpolator:
    return Interpolator([_load(path) for path in paths], enough)


def _fingerprint(plan: Plan) -> str:
    config = {key: value for key, value in to_dict(plan.config).items() if key not in IRRELEVANT}
    config["batch"] = {"accumulation": plan.config.batch.accumulation}
    hardware = {key: getattr(plan.config.hardware, key) for key in ("gpu", "gpus", "nodes", "memory_gib", "device")}
    facts = [{**config, "hardware": hardware}, versions_used(plan), _model_files(plan), code_digest("trace")]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _model_files(plan: Plan) -> str:
    """Return the ``config.json`` of a model in a local folder, which may change while its path stays; else ``""``."""
    path = Path(plan.config.model.path) / "config.json"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@cache
def code_digest(folder: str = "") -> str:
    """Return a digest of the source files of ``memlab.predict``, or of its subfolder ``folder``. A cached result is
    valid for the code that made it only."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
