"""Traces are kept on disk: what a rank does depends on the plan and the versions, not on when it is asked."""

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

from memlab.disk import explain
from memlab.launch.environment import cache_dir, versions_used
from memlab.plan import Plan
from memlab.predict.events import Trace
from memlab.predict.interpolate import ENOUGH, MINIMUM_TOKENS, UNCHECKED, Interpolator
from memlab.predict.micro_steps import repeated, with_few
from memlab.predict.ranks import traced_ranks
from memlab.predict.shadow.request import Point, ShadowError, Task, make

IRRELEVANT = ("allocator", "measure", "name", "force", "seed", "seq_len", "mode", "predict")
"""What a trace does not depend on; (batch, tokens) are part of its file name."""

FIRST_RANK = 0
"""Traced of every plan."""

TRACES, RANKS = 16, 48
"""What this process keeps, a few MB each: the traces that one configuration needs, and what they say of any other size
for every rank of the configurations that a search goes through."""

ROOM = 64 * 2**20
"""Bytes: on a disk with less than this free, the traces of one configuration may have no place."""


def traces(plan: Plan) -> dict[int, Trace]:
    """The traces of the ranks that differ: from the disk, computed from those there, or from a new shadow run.

    Raises :class:`ShadowError` when the model or the engine cannot be run.
    """
    while (found := known_traces(plan)) is None:
        if failures := make_missing([plan]):
            raise ShadowError(failures[0][1])
    return found


def traces_in_launch(plans: Sequence[Plan]) -> list[dict[int, Trace]]:
    """The traces of plans that differ in shape alone, made in one shadow process."""
    if failures := make_missing(deciding(plans)):
        raise ShadowError(failures[0][1])
    return [traces(plan) for plan in plans]


def deciding(plans: Iterable[Plan]) -> list[Plan]:
    """Those to trace, so that all are known: where a few share a trace folder all of them, of many those that decide
    the others."""
    sharing: dict[Path, list[Plan]] = {}
    for plan in plans:
        sharing.setdefault(trace_folder(plan), []).append(plan)
    found = []
    for group in sharing.values():
        group.sort(key=lambda plan: plan.config["batch"]["micro"] * plan.config["seq_len"]["tokens"])
        few = len(group) <= ENOUGH + 1
        found += group if few else [group[0], group[1], group[len(group) // 2], group[-1]]
    return found


def known_traces(plan: Plan) -> dict[int, Trace] | None:
    """The same without a shadow run; ``None`` where one is needed."""
    found = {}
    for point in points(plan):
        found[point.rank] = known(plan, point)
        if found[point.rank] is None:
            return None
    return found


def points(plan: Plan) -> list[Point]:
    """What a prediction of ``plan`` needs traced, or computed."""
    micro, tokens = plan.config["batch"]["micro"], plan.config["seq_len"]["tokens"]
    return [Point(rank, micro, tokens) for rank in traced_ranks(plan)]


def make_missing(
    plans: Iterable[Plan], told: Callable[[int, int], None] = lambda done, of: None
) -> list[tuple[Path, str]]:
    """Trace what is neither there nor can be computed, in one shadow process for all plans. ``told`` hears how many of
    how many are done.

    Where a configuration has a trace already, a further one is made beside the one asked for: then there are enough to
    compute all others. Returns the trace folders of the plans that failed, each with the reason.
    """
    tasks: dict[Path, Task] = {}
    leaders: dict[Path, Plan] = {}  # tasks of one plan share the start of their engine
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
    """Where what is traced for ``plan`` lies: the same folder for all plans that share traces."""
    return _folder(with_few(plan))


def kept(name: str) -> Path:
    """The folder of this name in the user's cache or, where that cannot be written, one that ends with this process."""
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
    """The trace of a point if it was made, or can be computed: from the others of its rank, and from one with few
    micro-steps."""
    few = with_few(plan)
    found = _known_as_it_is(few, point)
    if few is plan or found is None:
        return found
    return repeated(found, plan.config["batch"]["accumulation"]) or _known_as_it_is(plan, point)


def _to_trace(plan: Plan, point: Point) -> Plan | None:
    """What has to be traced for the point to be known: the plan with few micro-steps or, where those do not tell the
    others, the plan itself. ``None`` where the point is known."""
    few = with_few(plan)
    if not (_folder(few) / point.file_name).exists() and _known_as_it_is(few, point) is None:
        return few
    return None if few is plan or known(plan, point) else plan


def _folder(plan: Plan) -> Path:
    return kept("traces") / _fingerprint(plan)


def _known_as_it_is(plan: Plan, point: Point) -> Trace | None:
    """The trace of a point with all micro-steps of the plan."""
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
    """The points of a rank that were traced."""
    files = sorted(folder.glob(Point.prefix(rank) + "*"))
    return {Point.of_file(path.name): path for path in files}


def _follows(point: Point, others: Collection[Point]) -> bool:
    """Whether those are enough of a rank that is not the first: the same code runs on both, and so what the first
    rank's third point says of the laws of its sizes holds here - if they hold there."""
    in_line = all(other.tokens == point.tokens >= MINIMUM_TOKENS for other in others)
    return point.rank != FIRST_RANK and len(others) == UNCHECKED and in_line


def _also(traced: Iterable[Point], wanted: Point) -> Sequence[Point]:
    """With ``wanted`` and the one there is, a third point that tells all laws apart: of another batch than both, and of
    an odd length, which differs from every one that is rounded. One more where two of them have as many tokens in all:
    a constant and so much for each token shows in three different numbers."""
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
    config = {key: value for key, value in plan.config.items() if key not in IRRELEVANT}
    config["batch"] = {"accumulation": plan.config["batch"]["accumulation"]}
    hardware = {key: plan.config["hardware"][key] for key in ("gpu", "gpus", "nodes", "memory_gib", "device")}
    facts = [{**config, "hardware": hardware}, versions_used(plan), _model_files(plan), code_digest("shadow")]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _model_files(plan: Plan) -> str:
    """The configuration of a model in a folder may change while its path stays."""
    path = Path(plan.config["model"]["path"]) / "config.json"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@cache
def code_digest(folder: str = "") -> str:
    """Of the code that predicts, or of a ``folder`` of it: what was kept is as good as the code that made it."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parent / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
