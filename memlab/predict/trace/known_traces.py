"""Traces that need no shadow run: read from disk, interpolated, or made longer from a trace with few micro-steps."""

from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path

from memlab.core.plan import Plan
from memlab.core.run_id import shape_of
from memlab.predict.trace import store
from memlab.predict.trace.interpolate import CHECKED, MINIMUM_TOKENS, UNCHECKED, Interpolator
from memlab.predict.trace.micro_steps import repeated, with_few
from memlab.predict.trace.ranks import traced_ranks
from memlab.predict.trace.shadow_process import TraceKey
from memlab.predict.trace.trace_format import Trace

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
    found = {}
    for key in keys(plan):
        found[key.rank] = known(plan, key)
        if found[key.rank] is None:
            return None
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
    path = folder / key.file_name
    if path.exists():
        return store.load(path)
    others = store.traced(folder, key.rank)
    if len(others) >= CHECKED:
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
