"""Search over predictions: the largest micro batch of many configurations at once, and what single changes save.

Nothing here predicts: a :class:`Predictor` does, and is asked about many plans at a time, so that it can trace all of
them in one process and replay them on all cores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from memlab.config import Config
from memlab.plan import Plan, make_plan
from memlab.predict.memory import Estimate
from memlab.predict.verdicts import FITS
from memlab.record import BEFORE_STEPS

LARGEST_BATCH = 4096
"""Where a search ends, as one that measures does."""

GUESSES = 6
"""From then on a search doubles, whatever memory seems to grow like."""

FURTHEST = 4
"""As many times as large is the next size at the most: what decides the memory of a large batch does not show in those
of small ones."""

STEPS_DOWN = 3
"""Sizes tried below a first guess that was too large, each twice as far down; from then on a search halves."""

DECIDING = (1, 2, 3)
"""Micro batches that are traced at once: for most configurations these tell all others."""

Outcome = Estimate | str
"""Or why there is none."""


class Predictor(Protocol):
    def prepare(self, plans: Sequence[Plan]) -> None:
        """Do at once what estimates of ``plans``, and of all that differ from them in shape alone, need."""

    def estimates(self, plans: Sequence[Plan], limited: bool = True) -> list[Outcome]: ...

    def summaries(self, plans: Sequence[Plan]) -> list[dict[str, Any]]:
        """What the records of predicted runs sum up."""


@dataclass(frozen=True)
class Candidate:
    """One configuration. ``options`` are those that tell it from the others, by group or key."""

    options: dict[str, str]
    config: Config
    choices: dict[str, str]

    def plan(self, micro: int) -> Plan:
        return make_plan(replace(self.config, batch=replace(self.config.batch, micro=micro)), self.choices)


@dataclass(frozen=True)
class Row:
    """What became of a candidate: the largest micro batch that fits (0: none, and ``of_one`` says how a batch of one
    ends), the estimate there, and the summary of its predicted record."""

    candidate: Candidate
    batch: int
    of_one: Outcome
    best: Estimate | None = None
    next_up: Outcome | None = None  # of one more sample
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def usd_per_hour(self) -> float | None:
        return self.candidate.config.hardware.total_usd_per_hour

    @property
    def usd_per_million_tokens(self) -> float | None:
        rate = self.summary.get("tokens_per_second")
        if not rate or self.usd_per_hour is None:
            return None
        return self.usd_per_hour / 3600 / rate * 1e6


def largest_batches(candidates: Sequence[Candidate], predictor: Predictor, limit: int = LARGEST_BATCH) -> list[Row]:
    """All searches go on side by side, a size of each at a time."""
    predictor.prepare([candidate.plan(size) for candidate in candidates for size in DECIDING])
    tried: list[dict[int, Outcome]] = [{} for _ in candidates]
    while wanted := {i: size for i, seen in enumerate(tried) if (size := next_size(seen, limit)) is not None}:
        outcomes = predictor.estimates([candidates[i].plan(size) for i, size in wanted.items()])
        for (i, size), outcome in zip(wanted.items(), outcomes, strict=True):
            tried[i][size] = outcome
    rows = []
    for candidate, seen in zip(candidates, tried, strict=True):
        best = max((size for size, outcome in seen.items() if fits(outcome)), default=0)
        rows.append(Row(candidate, best, seen[1], seen[best] if best else None, seen.get(best + 1)))
    fitting = [row for row in rows if row.batch]
    summaries = iter(predictor.summaries([row.candidate.plan(row.batch) for row in fitting]))
    return [replace(row, summary=next(summaries)) if row.batch else row for row in rows]


def fits(outcome: Outcome) -> bool:
    return isinstance(outcome, Estimate) and outcome.verdict == FITS


def next_size(tried: dict[int, Outcome], limit: int) -> int | None:
    """The micro batch to try next; ``None`` when the answer is known: one fits and one more does not."""
    if any(isinstance(outcome, str) for outcome in tried.values()):
        return None
    low = max((size for size, outcome in tried.items() if fits(outcome)), default=0)
    high = min((size for size, outcome in tried.items() if not fits(outcome)), default=limit + 1)
    if high - low == 1:
        return None
    if low < 2:
        return low + 1
    failed = sum(not fits(outcome) for outcome in tried.values())
    if failed > STEPS_DOWN:
        return (low + high) // 2
    if failed:  # a guess is seldom far off
        return max(high - 2 ** (failed - 1), (low + high) // 2)
    return max(low + 1, min(_guess(tried, low), FURTHEST * low, limit))


def _guess(tried: dict[int, Estimate], low: int) -> int:
    """The size at which a phase fills the device, if each goes on growing as it did."""
    before, at = max(size for size in tried if size < low), tried[low]
    if len(tried) >= GUESSES or at.free is None:
        return 2 * low
    slopes = {phase: (held - tried[before].held.get(phase, held)) / (low - before) for phase, held in at.held.items()}
    # Fragmentation takes its share of a larger batch, too. What is used is that of the steps.
    full = (at.used + at.free) * max(held for phase, held in at.held.items() if phase not in BEFORE_STEPS) / at.used
    more = (round((full - at.held[phase]) / slope) for phase, slope in slopes.items() if slope > 0)
    return low + min(more, default=low)


def worth_measuring(rows: Sequence[Row], slowness: Sequence[str]) -> list[Row]:
    """Of the rows that fit, those that no other one beats; at most one of configurations that differ in their
    allocator alone.

    Where speed is predicted: the cheapest or fastest first. Where it is not: one that uses no slower option anywhere
    and fits as large a batch beats another. ``slowness`` names the axes whose options come from fast to slow.
    """
    fitting = [row for row in rows if row.batch]
    if fitting and all("tokens_per_second" in row.summary for row in fitting):
        return sorted(_one_allocator(fitting), key=lambda row: -row.summary["tokens_per_second"])
    ranks = _option_ranks(rows, slowness)

    def beats(one: Row, other: Row) -> bool:
        ours, theirs = ranks[id(one)], ranks[id(other)]
        no_worse = all(a <= b for a, b in zip(ours, theirs, strict=True)) and one.batch >= other.batch
        return no_worse and (ours, -one.batch) != (theirs, -other.batch)

    rest = _one_allocator(fitting)
    return [row for row in rest if not any(beats(other, row) for other in rest)]


def _one_allocator(rows: Sequence[Row]) -> list[Row]:
    """The first of the largest batch among rows that differ in their allocator alone."""
    chosen: dict[tuple, Row] = {}
    for row in rows:
        key = tuple((name, option) for name, option in row.candidate.options.items() if name != "allocator")
        if key not in chosen or row.batch > chosen[key].batch:
            chosen[key] = row
    return list(chosen.values())


def _option_ranks(rows: Sequence[Row], slowness: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """For each row, how slow its option is on each axis: 0 is the first that occurs."""
    orders = {name: list(dict.fromkeys(row.candidate.options.get(name) for row in rows)) for name in slowness}
    return {id(row): tuple(orders[name].index(row.candidate.options.get(name)) for name in slowness) for row in rows}


def cheapest(rows: Sequence[Row]) -> Row | None:
    """Of the rows that fit: by dollars a token where all speeds are predicted, else by dollars an hour and then by the
    larger batch. ``None`` where a price is missing or nothing fits."""
    fitting = [row for row in rows if row.batch]
    if not fitting or any(row.usd_per_hour is None for row in fitting):
        return None
    if all(row.usd_per_million_tokens is not None for row in fitting):
        return min(fitting, key=lambda row: row.usd_per_million_tokens)
    return min(fitting, key=lambda row: (row.usd_per_hour, -row.batch))


@dataclass(frozen=True)
class Change:
    """One word changed, and what comes of it. ``saved``: bytes of the fullest GPU, negative where it needs more."""

    word: str
    price: str
    outcome: Outcome
    saved: int | None


def single_changes(
    base: Plan, changes: Sequence[tuple[str, str, Plan]], predictor: Predictor
) -> tuple[Outcome, list[Change]]:
    """``changes``: word, price, plan. What ``base`` needs were the device large enough, and each change beside it:
    those that make it fit first, then by what they save."""
    plans = [base, *(plan for _, _, plan in changes)]
    predictor.prepare(plans)
    needs = predictor.estimates(plans, limited=False)
    verdicts = predictor.estimates(plans)
    outcomes = [
        replace(need, verdict=limited.verdict) if _known(need) and _known(limited) else limited
        for need, limited in zip(needs, verdicts, strict=True)
    ]
    first = outcomes[0]
    found = [
        Change(word, price, outcome, first.used - outcome.used if _known(first) and _known(outcome) else None)
        for (word, price, _), outcome in zip(changes, outcomes[1:], strict=True)
    ]
    return first, sorted(found, key=lambda change: (not fits(change.outcome), -(change.saved or 0)))


def _known(outcome: Outcome) -> bool:
    return isinstance(outcome, Estimate)
