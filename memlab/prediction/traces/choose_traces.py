"""Choice of the points to trace next, for any number of plans, and the shadow runs that trace them.

A few points of a configuration are traced; the traces of all others need no shadow run: they are read
from disk, interpolated, or made longer from a trace with few micro-steps.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path

from memlab.core.errors import ShadowError
from memlab.core.plan import Plan, shape_of
from memlab.prediction.traces import store
from memlab.prediction.traces.interpolate import CHECKED, MINIMUM_TOKENS, UNCHECKED, Interpolator
from memlab.prediction.traces.micro_steps import repeated, with_few
from memlab.prediction.traces.store import trace_folder, traced_ranks
from memlab.simulator.trace.trace_format import Trace
from memlab.training.simulated.shadow_process import Task, TraceKey, run_shadow

FIRST_RANK = 0
"""The rank that is traced for every plan."""

INTERPOLATORS = 48
"""Interpolators that this process keeps in memory, a few MB each: one for each rank of the configurations in a
search."""


def keys(plan: Plan) -> list[TraceKey]:
    """Return the keys of the traces that a prediction of ``plan`` needs: one for each rank that differs."""
    return [TraceKey(rank, *shape_of(plan.config)) for rank in traced_ranks(plan)]


def known_traces(plan: Plan) -> dict[int, Trace] | None:
    """Return the traces of the ranks that differ; ``None`` where a shadow run is needed."""
    found: dict[int, Trace] = {}
    for key in keys(plan):
        if (trace := known(plan, key)) is None:
            return None
        found[key.rank] = trace
    return found


def known(plan: Plan, key: TraceKey) -> Trace | None:
    """Return one trace of a plan; ``None`` where a shadow run is needed."""
    few = with_few(plan)
    found = known_exact(few, key)
    if few is plan or found is None:
        return found
    return repeated(found, plan.config.batch.accumulation) or known_exact(plan, key)


def known_exact(plan: Plan, key: TraceKey) -> Trace | None:
    """Return a trace with all micro-steps of the plan, read or interpolated; ``None`` if neither is possible."""
    folder = store.folder_of_exact(plan)
    if (path := folder / key.file_name).exists():
        return store.load(path)
    if len(others := store.traced(folder, key.rank)) >= CHECKED:
        return _interpolated(others.values(), key, CHECKED)
    first = store.traced(folder, FIRST_RANK)
    if follows_first_rank(key, others) and len(first) >= CHECKED and _interpolated(first.values(), key, CHECKED):
        return _interpolated(others.values(), key, UNCHECKED)
    return None


def follows_first_rank(key: TraceKey, others: Collection[TraceKey]) -> bool:
    """Return whether two traces of a rank, ``others``, are enough to interpolate ``key`` once rank 0 has three.

    They are enough if all have as many tokens: both ranks run the same code, and rank 0's third trace has verified the
    size formulas.
    """
    same_length = all(other.tokens == key.tokens >= MINIMUM_TOKENS for other in others)
    return key.rank != FIRST_RANK and len(others) == UNCHECKED and same_length


def _interpolated(paths: Iterable[Path], key: TraceKey, minimum: int) -> Trace | None:
    return _interpolator(tuple(paths), minimum).at(key.micro, key.tokens)


@lru_cache(maxsize=INTERPOLATORS)
def _interpolator(paths: tuple[Path, ...], minimum: int) -> Interpolator:
    return Interpolator([store.load(path) for path in paths], minimum)


def traces(plan: Plan) -> dict[int, Trace]:
    """Return the traces of the ranks that differ: read from disk, interpolated, or made by a new shadow run.

    Raises :class:`ShadowError` when the model or the engine cannot be run.
    """
    while (found := known_traces(plan)) is None:
        for reason in trace_missing([plan]).values():
            raise ShadowError(reason)
    return found


def traces_in_launch(plans: Sequence[Plan]) -> list[dict[int, Trace]]:
    """Return the traces of plans that differ in shape alone. One shadow process makes the missing ones."""
    for reason in trace_missing(plans).values():
        raise ShadowError(reason)
    return [traces(plan) for plan in plans]


def trace_missing(
    plans: Iterable[Plan], on_progress: Callable[[int, int], None] = lambda done, of: None
) -> dict[Path, str]:
    """Make the traces that the plans need next, in one shadow process for all plans.

    ``on_progress(done, of)`` reports the number of finished traces. Returns the trace folders of the plans that failed,
    each with the reason.
    """
    return make(next_tasks(plans), on_progress)


def make(tasks: Sequence[Task], on_progress: Callable[[int, int], None] = lambda done, of: None) -> dict[Path, str]:
    """Make traces as :func:`trace_missing` does. ``tasks``: what :func:`next_tasks` returned."""
    if not tasks:
        return {}
    for task in tasks:
        task.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="memlab-shadow-") as scratch:
        failed = run_shadow(tasks, Path(scratch), lambda done: on_progress(done, len(tasks)))
    return {trace_folder(task.plan): reason for task, reason in failed}


def next_tasks(plans: Iterable[Plan]) -> list[Task]:
    """Choose the traces to make next. When they are made, the traces of most other plans can be interpolated; the
    traces of the rest are chosen by the next call.

    Where a configuration has one trace already, a third point is traced with the requested one: three are enough to
    interpolate all others.
    """
    tasks: dict[Path, Task] = {}
    leaders: dict[Path, Plan] = {}  # tasks with the same plan share one start of the engine
    for plan in _deciding(plans):
        for key in keys(plan):
            if (wanted := _to_trace(plan, key)) is None:
                continue
            folder = store.folder_of_exact(wanted)
            chosen = [task.key for task in tasks.values() if task.path.parent == folder]
            if follows_first_rank(key, [other for other in chosen if other.rank == key.rank]):
                continue
            leader = leaders.setdefault(folder, wanted)
            for each in (key, *_further(store.traced(folder, key.rank), key)):
                tasks.setdefault(folder / each.file_name, Task(leader, each, folder / each.file_name))
    return list(tasks.values())


def _deciding(plans: Iterable[Plan]) -> list[Plan]:
    """Choose the plans to trace first; the traces of the others are interpolated.

    Of the plans that share a trace folder, all are chosen if they are at most one more than ``CHECKED``. Otherwise four
    are chosen by their number of tokens in a batch: the two smallest, the middle one and the largest.
    """
    sharing: dict[Path, dict[tuple[int, int], Plan]] = {}  # plans of one shape, such as with two allocators, are one
    for plan in plans:
        sharing.setdefault(trace_folder(plan), {}).setdefault(shape_of(plan.config), plan)
    found = []
    for by_shape in sharing.values():
        group = sorted(by_shape.values(), key=lambda plan: prod(shape_of(plan.config)))
        found += group if len(group) <= CHECKED + 1 else [group[0], group[1], group[len(group) // 2], group[-1]]
    return found


def _to_trace(plan: Plan, key: TraceKey) -> Plan | None:
    """Return the plan to trace for a key; ``None`` if its trace is known.

    This is the plan with few micro-steps, or the plan itself if few micro-steps do not determine the rest.
    """
    few = with_few(plan)
    if not (store.folder_of_exact(few) / key.file_name).exists() and known_exact(few, key) is None:
        return few
    return None if few is plan or known(plan, key) else plan


def _further(traced: Iterable[TraceKey], wanted: TraceKey) -> list[TraceKey]:
    """Return the points to trace besides ``wanted``, so that with the one traced point they make the size formulas
    unique. Empty unless exactly one usable point is traced.

    A further point has a larger batch than the two, and an odd length, which differs from every rounded length. One
    more is added where two points have the same number of tokens in the batch: a constant plus a slope for each token
    needs three different numbers.
    """
    usable = [key for key in traced if key.tokens >= MINIMUM_TOKENS]
    if len(usable) != 1 or wanted.tokens < MINIMUM_TOKENS:
        return []
    first = usable[0]
    further: list[TraceKey] = []
    tokens = max(min(first.tokens, wanted.tokens) * 7 // 8 | 1, MINIMUM_TOKENS)
    micro = max(first.micro, wanted.micro)
    while len({key.micro * key.tokens for key in (first, wanted, *further)}) < CHECKED:
        micro += 1
        further.append(TraceKey(wanted.rank, micro, tokens))
    return further
