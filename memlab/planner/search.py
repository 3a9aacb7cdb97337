"""Search over predictions: the largest micro batch of many configurations at once, and what single changes save.

A :class:`Predictor` predicts many plans at a time, so that it can trace all of them in one process and replay them on
all cores.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import le
from typing import Any, TypeGuard

from memlab.core.basis import EXACT, Basis
from memlab.core.config import Config
from memlab.core.grouping import grouped
from memlab.core.plan import Plan, make_plan
from memlab.core.record import BEFORE_STEPS, DOES_NOT_FIT, DOES_NOT_LAST, FITS, OUT_OF_MEMORY, Record
from memlab.planner.changes import Change
from memlab.prediction.memory.rank_results import Estimate

LARGEST_BATCH = 4096
"""Largest micro batch of a search, as in a search that measures."""

EXTRAPOLATIONS = 6
"""Number of sizes after which a search doubles the batch instead of extrapolating memory."""

LARGEST_FACTOR = 4
"""Largest ratio of the next size to the largest that fits: small batches do not show what determines the memory
of large ones."""

STEPS_DOWN = 3
"""Sizes tried below a first guess that was too large, each twice as far down; from then on a search halves."""

TRACED_BATCHES = (1, 2, 3)
"""Micro batches that are traced at the start. For most configurations all others are interpolated from them."""

Outcome = Estimate | str
"""An estimate, or the reason why there is none."""

Progress = Callable[[str, int, int], None]
"""Called with the progress: ("tracing", 3, 12)."""


class Predictor:
    """Predictor of many plans, a context manager. ``on_progress`` is called with the progress: ("tracing", 3, 12).

    Whatever was predicted is written to disk at once, so an interrupted run continues where it stopped.
    """

    def __init__(self, on_progress: Progress):
        self._on_progress = on_progress

    def __enter__(self) -> "Predictor":
        return self

    def __exit__(self, *exception) -> None:
        """Do nothing, unless a process outlives a prediction."""

    def prepare(self, plans: Sequence[Plan]) -> None:
        """Prepare at once the estimates of ``plans`` and of all plans that differ from them in shape alone, if that
        saves time."""

    def estimates(self, plans: Sequence[Plan], limited: bool = True) -> Sequence[Outcome]:
        """Return an estimate for each plan, or the reason why there is none. ``limited=False``: of what it would need
        on a device of any size, with the verdict on the plan's own."""
        raise NotImplementedError

    def largest(self, plan_at: Callable[[int], Plan], sizes: Sequence[int], low: int, high: int) -> int | None:
        """Compute the largest size that fits, from ``low`` to below ``high``; ``None`` if that takes an estimate.

        ``plan_at`` makes the plan of a size; ``sizes`` were estimated.
        """
        return None

    def summaries(self, plans: Sequence[Plan]) -> list[tuple[dict[str, Any], Basis]]:
        """Predict the plans. Returns the summary of each record, and how its speed is known."""
        raise NotImplementedError

    def outlooks(self, plans: Sequence[Plan]) -> list[tuple[dict[str, Any], Basis]]:
        """Predict at least verdict and step time. Returns these parts of each summary, and how the step time is
        known."""
        return self.summaries(plans)


@dataclass(frozen=True)
class Candidate:
    """One configuration. ``options``: group or key -> option, where it differs from the other configurations.
    ``words``: the words for launch.py that compose it, but for the batch."""

    options: dict[str, str]
    config: Config
    choices: dict[str, str]
    words: tuple[str, ...] = ()

    def plan(self, micro: int) -> Plan:
        return make_plan(replace(self.config, batch=replace(self.config.batch, micro=micro)), self.choices)


@dataclass(frozen=True)
class Row:
    """Result of one candidate's search. ``batch``: the largest micro batch that fits, 0 if none does. ``best`` and
    ``summary``: the estimate and the record's summary at that batch, of which ``basis`` says how the speed is known.
    ``of_one``: the outcome of a batch of one."""

    candidate: Candidate
    batch: int
    of_one: Outcome
    best: Estimate | None = None
    next_up: Outcome | None = None  # outcome of one more sample
    summary: dict[str, Any] = field(default_factory=dict)
    basis: Basis = EXACT

    @property
    def rate(self) -> float | None:
        """Tokens per second that may be compared; ``None`` if they are not known, or only a bound."""
        return None if self.basis.is_bound else self.summary.get("tokens_per_second")

    @property
    def usd_per_hour(self) -> float | None:
        return self.candidate.config.hardware.total_usd_per_hour

    @property
    def usd_per_million_tokens(self) -> float | None:
        rate = self.summary.get("tokens_per_second")
        return self.usd_per_hour / 3600 / rate * 1e6 if rate and self.usd_per_hour is not None else None


def largest_batches(candidates: Sequence[Candidate], predictor: Predictor, limit: int = LARGEST_BATCH) -> list[Row]:
    """Find the largest micro batch of each candidate that fits. All searches run side by side, one size of each at a
    time."""
    predictor.prepare([candidate.plan(size) for candidate in candidates for size in TRACED_BATCHES])
    tried: list[dict[int, Outcome]] = [{} for _ in candidates]

    def following(i: int) -> int | None:
        return next_size(tried[i], limit, computed=partial(predictor.largest, candidates[i].plan, sorted(tried[i])))

    while wanted := {i: size for i in range(len(tried)) if (size := following(i)) is not None}:
        outcomes = predictor.estimates([candidates[i].plan(size) for i, size in wanted.items()])
        for (i, size), outcome in zip(wanted.items(), outcomes, strict=True):
            tried[i][size] = outcome
    fitted = [{size: outcome for size, outcome in seen.items() if fits(outcome)} for seen in tried]
    best = [max(sizes, default=0) for sizes in fitted]
    fitting = [i for i, size in enumerate(best) if size]
    known = dict(zip(fitting, predictor.summaries([candidates[i].plan(best[i]) for i in fitting]), strict=True))
    return [
        Row(candidate, size, seen[1], fitted[i].get(size), seen.get(size + 1), *known.get(i, ()))
        for i, (candidate, size, seen) in enumerate(zip(candidates, best, tried, strict=True))
    ]


def fits(outcome: Outcome) -> TypeGuard[Estimate]:
    return isinstance(outcome, Estimate) and outcome.verdict == FITS


def next_size(
    tried: Mapping[int, Outcome],
    limit: int,
    first: int = 1,
    step: int = 1,
    computed: Callable[[int, int], int | None] = lambda low, high: None,
) -> int | None:
    """Return the size to try next: a micro batch, or a sequence length. ``None`` when the search is over: a size fits
    and one that is at most ``step`` larger does not, or an estimate failed.

    ``first``: the size to begin with. ``computed(low, high)``: the largest size that fits, from ``low``, which does, to
    below ``high``, which does not, where it can be computed from the sizes that were tried.
    """
    known = {size: outcome for size, outcome in tried.items() if isinstance(outcome, Estimate)}
    if len(known) < len(tried):
        return None
    low = max((size for size, outcome in tried.items() if fits(outcome)), default=0)
    high = min((size for size, outcome in tried.items() if not fits(outcome)), default=limit + 1)
    if high - low <= step:
        return None
    if not tried:
        return min(first, limit)
    if sum(map(fits, tried.values())) < 2:  # too few to extrapolate from
        return min(2 * low, limit) if high > limit else (low + high) // 2
    if (size := computed(low, high)) is not None:
        return max(size, low + 1)
    if (failed := sum(not fits(outcome) for outcome in tried.values())) > STEPS_DOWN:
        return (low + high) // 2
    if failed:  # a guess is seldom far off
        return max(high - 2 ** (failed - 1), (low + high) // 2)
    return max(low + 1, min(_extrapolated(known, low), LARGEST_FACTOR * low, limit))


def outcome_of(record: Record) -> Outcome:
    """Return the estimate that a predicted record holds, or the reason why it holds none."""
    if record.status not in ("ok", *OUT_OF_MEMORY):
        return f"{record.status}: {record.reason}"
    verdict = record.summary.get("verdict", FITS)
    if record.status != "ok" or verdict == DOES_NOT_LAST:
        verdict = DOES_NOT_FIT
    keys = ("device_used_bytes", "device_total_bytes", "peak_reserved_bytes", "host_peak_bytes")
    used, total, reserved, host = (max((rank[key] or 0 for rank in record.ranks), default=0) for key in keys)
    held: dict[str, int] = {}
    for rank in record.ranks:
        for name, phase in rank["phases"].items():
            held[name] = max(held.get(name, 0), phase["peak_allocated_bytes"] + max(0, used - reserved))
    return Estimate(verdict, used, total - used, host, held)


def _extrapolated(tried: Mapping[int, Estimate], low: int) -> int:
    """Return the size at which the first phase fills the device, if every phase grows on linearly."""
    before, at = max(size for size in tried if size < low), tried[low]
    if len(tried) >= EXTRAPOLATIONS or at.free is None:
        return 2 * low
    slopes = {phase: (held - tried[before].held.get(phase, held)) / (low - before) for phase, held in at.held.items()}
    # Fragmentation takes the same share of a larger batch. ``used`` excludes the phases before the first step.
    full = (at.used + at.free) * max(held for phase, held in at.held.items() if phase not in BEFORE_STEPS) / at.used
    more = (round((full - at.held[phase]) / slope) for phase, slope in slopes.items() if slope > 0)
    return low + min(more, default=low)


def rows_to_measure(rows: Sequence[Row], slowness: Sequence[str]) -> list[Row]:
    """Choose the fitting rows that are worth measuring, at most one of the configurations that differ in their
    allocator alone.

    If all speeds are known, return all of them, the fastest first. Else return the rows that no other row beats: a
    row beats another if it uses no slower option on any axis and fits at least as large a batch. ``slowness`` names the
    axes whose options come from fast to slow.
    """
    fitting = [row for row in rows if row.batch]
    if fitting and all(row.rate for row in fitting):
        return sorted(_one_allocator(fitting), key=lambda row: row.rate or 0.0, reverse=True)
    orders = {name: list(dict.fromkeys(row.candidate.options.get(name) for row in rows)) for name in slowness}

    def numbers(row: Row) -> tuple[int, ...]:
        """Return how slow the row's option is on each axis, 0: the first option that occurs; and its negative batch."""
        return (*(order.index(row.candidate.options.get(name)) for name, order in orders.items()), -row.batch)

    def beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return one != other and all(map(le, one, other))

    rest = [(numbers(row), row) for row in _one_allocator(fitting)]
    return [row for own, row in rest if not any(beats(other, own) for other, _ in rest)]


def _one_allocator(rows: Sequence[Row]) -> list[Row]:
    """Keep the first row with the largest batch among rows that differ in their allocator alone."""
    alike = grouped(rows, lambda row: tuple(pair for pair in row.candidate.options.items() if pair[0] != "allocator"))
    return [max(group, key=lambda row: row.batch) for group in alike.values()]


def cheapest(rows: Sequence[Row]) -> Row | None:
    """Return the cheapest row that fits: by dollars a token where all speeds are known, else by dollars an hour and
    then by the larger batch. ``None`` where a price is missing or nothing fits."""
    fitting = [row for row in rows if row.batch]
    if not fitting or any(row.usd_per_hour is None for row in fitting):
        return None
    if all(row.rate for row in fitting):
        return min(fitting, key=lambda row: row.usd_per_million_tokens or 0.0)
    return min(fitting, key=lambda row: (row.usd_per_hour, -row.batch))


@dataclass(frozen=True)
class SingleChange:
    """One changed word of the command line and its outcome. ``saved``: bytes of the fullest GPU, negative where the
    change needs more."""

    word: str
    price: str
    outcome: Outcome
    saved: int | None


def single_changes(base: Plan, changes: Sequence[Change], predictor: Predictor) -> tuple[Outcome, list[SingleChange]]:
    """Estimate ``base`` and each single change of it, on a device that is large enough.

    Returns the outcome of ``base`` and the changes: first the ones that fit the real device, then by the bytes saved.
    """
    plans = [base, *(change.plan for change in changes if change.plan is not None)]
    predictor.prepare(plans)
    first, *outcomes = predictor.estimates(plans, limited=False)
    found = [with_outcome(change, first, outcome) for change, outcome in zip(changes, outcomes, strict=True)]
    return first, in_order(found)


def with_outcome(change: Change, base: Outcome, outcome: Outcome) -> SingleChange:
    """Return a change with its outcome, and what it saves. ``base``: the outcome without the change."""
    saved = base.used - outcome.used if isinstance(base, Estimate) and isinstance(outcome, Estimate) else None
    return SingleChange(change.told, change.price, outcome, saved)


def in_order(changes: Sequence[SingleChange]) -> list[SingleChange]:
    """Sort changes: first the ones that fit the real device, then by the bytes saved."""
    return sorted(changes, key=lambda change: (not fits(change.outcome), -(change.saved or 0)))
