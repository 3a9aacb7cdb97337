"""Fit of the costs of :mod:`memlab.prediction.time.clocks` to measured steps, and the errors of its predictions.

A step's time is linear in the costs as long as host and streams wait for the same things. So a fit repeats two things
for a few rounds: find the slope of each time by each cost, then find the non-negative costs that fit best.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context

import numpy as np

from memlab.core.config import Config
from memlab.core.errors import MemlabError
from memlab.core.grouping import grouped
from memlab.prediction.time.clocks import LOWER_BOUND, Costs, step_seconds
from memlab.simulator.trace.trace_format import Traces

NAMES = tuple(asdict(LOWER_BOUND))

TRIAL = Costs(
    **dict.fromkeys(("compute", "memory", "link", "host_link"), 2.0),
    **dict.fromkeys(("pageable_link", "to_host_converted", "from_host_converted"), 10.0),
    operator_s=1e-5,
    **dict.fromkeys(("module_s", "hook_s", "collective_s"), 2e-4),
    host_byte_s=1 / 200e9,
)
"""Costs at which a fit starts, right in order of magnitude. They also show whether a prediction depends on an
undetermined cost: the prediction is tried with its value here. No predicted time is computed from them."""

SHARE, CASES = 0.10, 3
"""A cost is determined if at least ``CASES`` records spend ``SHARE`` of a step on it."""

NEGLIGIBLE = 0.05
"""Share of a time. A time that changes by less, when a cost goes from its bound to ``TRIAL``, does not depend on that
cost."""

MINIMUM_RECORDS, MINIMUM_FAMILIES = 6, 3

OF_A_FAMILY = 4
"""Number of records of one engine configuration that a fit uses, spread over its sizes. Errors are computed on all."""

ROUNDS, CONVERGED = 20, 1e-2


@dataclass(frozen=True)
class Case:
    """A measured step and the traces of its work. ``family``: equal for records of the same engine configuration."""

    name: str
    family: str
    config: Config
    traces: Traces
    seconds: float


@dataclass
class CostFit:
    """Result of a fit. ``errors``: measured / predicted - 1 of each case, predicted by a fit without the records of its
    family.

    An error is NaN where a cost that the case depends on is not determined without the family.
    """

    costs: Costs
    undetermined: list[str]
    from_shipped: list[str]  # costs taken from the shipped calibration
    determined_once: list[str]  # costs that one family alone determines
    cases: list[Case]
    left_out: list[Case]  # cases that depend on undetermined costs
    errors: list[float]

    def error(self, quantile: float) -> float:
        """Return a quantile of the absolute errors, with the same weight for every family."""
        judged = ~np.isnan(self.errors)
        cases = [case for case, is_judged in zip(self.cases, judged, strict=True) if is_judged]
        return weighted_quantile(np.abs(np.array(self.errors)[judged]), _weights(cases), quantile)


def fit_costs(cases: Sequence[Case], shipped: Mapping[str, float] | None = None) -> CostFit:
    """Fit the costs to ``cases``. A cost that the cases do not determine is taken from ``shipped``, the costs of
    the shipped calibration, or stays at its bound.

    Raises :class:`MemlabError` where there are too few records.
    """
    check_enough([case.family for case in cases])
    known = dict(shipped or {})
    fallback = replace(LOWER_BOUND, **known)
    names, costs, kept = list(NAMES), TRIAL, list(cases)
    while True:
        fitted = _representatives(kept)
        costs, slopes = _fit_in_rounds(fitted, names, costs)
        if not (weak := _undetermined(fitted, names, costs, slopes)):
            break
        names = [name for name in names if name not in weak]
        costs = _with_costs_of(costs, [name for name in NAMES if name not in names], fallback)
        undetermined = [name for name in NAMES if name not in (*names, *known)]
        kept = [case for case in kept if not depends_on_undetermined(case.config, case.traces, costs, undetermined)]
        check_enough([case.family for case in kept])
    errors, determined_once = _errors_of_left_out(kept, fitted, names, costs, slopes, fallback)
    return CostFit(
        costs=costs,
        undetermined=[name for name in NAMES if name not in (*names, *known)],
        from_shipped=[name for name in NAMES if name not in names and name in known],
        determined_once=[name for name in names if name in determined_once],
        cases=kept,
        left_out=[case for case in cases if case not in kept],
        errors=errors,
    )


def _undetermined(cases: Sequence[Case], names: Sequence[str], costs: Costs, slopes: np.ndarray) -> list[str]:
    """Return the costs among ``names`` that the cases do not determine."""
    shares = slopes * _values(costs, names) / [[case.seconds] for case in cases]
    return [name for name, share in zip(names, shares.T, strict=True) if (share >= SHARE).sum() < CASES]


def spends_time_on(config: Config, traces: Traces, costs: Costs, names: Sequence[str]) -> bool:
    """Return whether the costs ``names`` make up more than ``NEGLIGIBLE`` of a step's time."""
    without = step_seconds(config, traces, _with_costs_of(costs, names, LOWER_BOUND))
    return without < (1 - NEGLIGIBLE) * step_seconds(config, traces, costs)


def depends_on_undetermined(config: Config, traces: Traces, costs: Costs, undetermined: Sequence[str]) -> bool:
    """Return whether a step's time depends on undetermined costs: whether it grows by more than ``NEGLIGIBLE`` with
    their values in ``TRIAL``."""
    if not undetermined:
        return False
    tried = step_seconds(config, traces, _with_costs_of(costs, undetermined, TRIAL))
    return tried > (1 + NEGLIGIBLE) * step_seconds(config, traces, costs)


def check_enough(families: Sequence[str]) -> None:
    """Raise :class:`MemlabError` for too few records. ``families``: the engine configuration of each."""
    records, different = len(families), len(set(families))
    if records < MINIMUM_RECORDS or different < MINIMUM_FAMILIES:
        raise MemlabError(
            f"{records} usable records of {different} engine configurations are too few to calibrate on: at least "
            f"{MINIMUM_RECORDS} of {MINIMUM_FAMILIES} are needed: measured, ok, on GPUs of one kind, and with "
            "nothing in them that no other record shows. Measure more configurations, some with small and some with "
            "large batches."
        )


def _representatives(cases: Sequence[Case]) -> list[Case]:
    chosen = []
    for members in grouped(cases, lambda case: case.family).values():
        members.sort(key=lambda case: case.config.batch.micro * case.config.seq_len.tokens)
        spread = np.linspace(0, len(members) - 1, min(len(members), OF_A_FAMILY)).round().astype(int)
        chosen += [members[index] for index in spread]
    return chosen


def _fit_in_rounds(cases: Sequence[Case], names: Sequence[str], costs: Costs) -> tuple[Costs, np.ndarray]:
    """Fit the costs ``names``, starting at ``costs``. Return all costs and the slopes: how the time of each case (row)
    changes with each cost of ``names`` (column)."""
    for _ in range(ROUNDS):
        slopes, constants = _linearised(cases, names, costs)
        found = _solve(slopes, constants, cases, names)
        before = _values(costs, names)
        costs = replace(costs, **dict(zip(names, ((before + found) / 2).tolist(), strict=True)))
        if np.all(np.abs(found - before) <= CONVERGED * np.maximum(before, _values(TRIAL, names))):
            break
    return costs, _linearised(cases, names, costs)[0]


def _linearised(cases: Sequence[Case], names: Sequence[str], costs: Costs) -> tuple[np.ndarray, np.ndarray]:
    """Return the slopes and constants of ``seconds = constants + slopes @ values``, for costs near ``costs``."""
    steps = {name: 1e-3 * getattr(TRIAL, name) for name in names}
    near = [replace(costs, **{name: getattr(costs, name) + step}) for name, step in steps.items()]
    times, *moved = _times_by_each(cases, [costs, *near])
    slopes = (np.array(moved).T - times[:, None]) / np.array(list(steps.values()))
    return slopes, times - slopes @ _values(costs, names)


def _times_by_each(cases: Sequence[Case], each: Sequence[Costs]) -> list[np.ndarray]:
    """Return the times of all cases by each of the costs, computed on all cores. The processes are forks, which share
    the large cases without copying them."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork"), _hold, (cases,)) as pool:
        return list(pool.map(_held_times, each))


_held: Sequence[Case] = ()


def _hold(cases: Sequence[Case]) -> None:
    global _held
    _held = cases


def _held_times(costs: Costs) -> np.ndarray:
    return _times(_held, costs)


def _times(cases: Sequence[Case], costs: Costs) -> np.ndarray:
    """Return the predicted seconds of each case. Cases that share their traces are computed once."""
    first = {id(case.traces): case for case in reversed(cases)}
    found = {traces: step_seconds(case.config, case.traces, costs) for traces, case in first.items()}
    return np.array([found[id(case.traces)] for case in cases])


def _solve(slopes: np.ndarray, constants: np.ndarray, cases: Sequence[Case], names: Sequence[str]) -> np.ndarray:
    """Solve for the costs ``names``: least squares of the relative errors, with the same weight for every family and no
    cost below its bound."""
    seconds = np.array([case.seconds for case in cases])
    bounds = _values(LOWER_BOUND, names)
    weights = np.sqrt(_weights(cases)) / seconds
    target = (seconds - constants - slopes @ bounds) * weights
    scale = _values(TRIAL, names)
    return bounds + scale * non_negative_least_squares(slopes * weights[:, None] * scale, target)


def non_negative_least_squares(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the least-squares solution without negative entries, by the active sets of Lawson and Hanson (1974,
    chapter 23)."""
    solution = np.zeros(matrix.shape[1])
    free = np.zeros(matrix.shape[1], dtype=bool)
    tolerance = 1e-10 * np.abs(matrix.T @ target).max(initial=0.0)
    while True:
        gradient = np.where(free, -np.inf, matrix.T @ (target - matrix @ solution))
        if gradient.max(initial=-np.inf) <= tolerance:
            return solution
        free[gradient.argmax()] = True
        while True:
            trial = np.zeros_like(solution)
            trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            negative = free & (trial <= 0)
            if not negative.any():
                solution = trial
                break
            # Move towards the trial until an entry becomes zero; an entry at zero is no longer free.
            reach = (solution[negative] / (solution[negative] - trial[negative])).min()
            solution = solution + reach * (trial - solution)
            free &= solution > 1e-12 * np.abs(solution).max(initial=0.0)
            solution[~free] = 0.0


def _errors_of_left_out(
    cases: Sequence[Case],
    fitted: Sequence[Case],
    names: Sequence[str],
    costs: Costs,
    slopes: np.ndarray,
    fallback: Costs,
) -> tuple[list[float], set[str]]:
    """Return the error of each case by costs that were solved for without its family, and the costs that one family
    alone determines. Costs that are not determined without the family are taken from ``fallback``."""
    constants = _times(fitted, costs) - slopes @ _values(costs, names)
    families = np.array([case.family for case in fitted])
    errors = np.full(len(cases), np.nan)
    determined_once: set[str] = set()
    for family in dict.fromkeys(case.family for case in cases):
        rest = families != family
        others = [case for case in fitted if case.family != family]
        weak = _undetermined(others, names, costs, slopes[rest])
        unknown = [name for name in weak if getattr(fallback, name) == getattr(LOWER_BOUND, name)]
        determined_once.update(unknown)
        own = [
            index
            for index, case in enumerate(cases)
            if case.family == family and not spends_time_on(case.config, case.traces, costs, unknown)
        ]
        is_weak = np.isin(names, weak)
        fixed = constants[rest] + slopes[rest][:, is_weak] @ _values(fallback, names)[is_weak]
        kept = [name for name in names if name not in weak]
        found = _solve(slopes[rest][:, ~is_weak], fixed, others, kept)
        solved = _with_costs_of(replace(costs, **dict(zip(kept, found.tolist(), strict=True))), weak, fallback)
        errors[own] = [cases[index].seconds for index in own] / _times([cases[index] for index in own], solved) - 1
    return errors.tolist(), determined_once


def weighted_quantile(values: np.ndarray, weights: np.ndarray, quantile: float) -> float:
    """Return the lowest value such that the values up to it hold the share ``quantile`` of the weight."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(share, quantile - 1e-9)])


def _weights(cases: Sequence[Case]) -> np.ndarray:
    families = [case.family for case in cases]
    return np.array([1 / families.count(family) for family in families])


def _values(costs: Costs, names: Sequence[str]) -> np.ndarray:
    return np.array([getattr(costs, name) for name in names])


def _with_costs_of(costs: Costs, names: Sequence[str], values: Costs) -> Costs:
    """Return ``costs`` with the costs ``names`` taken from ``values``."""
    return replace(costs, **{name: getattr(values, name) for name in names})
