"""Fit of memory over tokens for each configuration, and the longest sequence and largest batch that fit by it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from memlab.analyse.identity import configurations, point_of, tokens_of
from memlab.analyse.regression import Line, fit_line, flat_until, leave_one_out
from memlab.analyse.run_view import RunView, peak, value_at
from memlab.core.sizes import GIB, MIB

FLAT_BYTES = 2 * MIB
"""Memory is flat as long as it varies by at most this: the step of requests of torch's allocator to the driver."""

MARGIN = 0.05
"""Default share of the memory that is kept free."""


@dataclass(frozen=True)
class Fit:
    """Fit of ``quantity`` (bytes, largest rank) over tokens (micro batch x sequence length) of one configuration."""

    label: str
    quantity: str
    line: Line
    tokens: tuple[int, ...]
    bytes: tuple[float, ...]
    flat_until: float | None  # tokens up to which every measurement is within FLAT_BYTES of the first; hinges only
    errors: tuple[float, ...]  # leave-one-out, relative
    oom_tokens: int | None  # fewest tokens of a run that ended out of GPU memory
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    memory_gib: float | None  # memory of one GPU, from the configuration

    @property
    def median_error(self) -> float | None:
        return median(map(abs, self.errors)) if self.errors else None

    @property
    def largest_error(self) -> float | None:
        return max(map(abs, self.errors)) if self.errors else None


@dataclass(frozen=True)
class Capacity:
    """The most tokens of one forward on one GPU whose memory, with the 95 % interval, stays within the budget.

    ``tokens`` is ``None`` if not even one token fits. ``limit`` says what limits the tokens: ``memory`` (the budget) or
    ``oom`` (a run that ended out of GPU memory).
    """

    tokens: int | None
    limit: str
    extrapolated: bool  # more than the most that was tried

    def sequence(self, micro: int) -> int:
        """Return the longest sequence at this micro batch; 0 if none fits."""
        return (self.tokens or 0) // micro

    def batch(self, tokens: int) -> int:
        """Return the largest micro batch at this sequence length; 0 if none fits."""
        return (self.tokens or 0) // tokens


def fit_all(runs: Iterable[RunView], quantity: str = "peak_reserved_bytes") -> tuple[list[Fit], list[tuple[str, str]]]:
    """Fit each configuration. Returns the fits, and the configurations without a fit with the reason."""
    fits, without = [], []
    for label, members in configurations(runs).items():
        measured = [run for run in members if run.fits_and_lasts and peak(run, quantity)]
        if len({tokens_of(run) for run in measured}) < 3:
            without.append((label, f"{len(measured)} points with {quantity}; a fit needs three different token counts"))
        else:
            fits.append(_fit(label, quantity, measured, members))
    return fits, without


def _fit(label: str, quantity: str, measured: Sequence[RunView], members: Sequence[RunView]) -> Fit:
    points = sorted((tokens_of(run), peak(run, quantity)) for run in measured)
    tokens, sizes = zip(*points, strict=True)
    line = fit_line(tokens, sizes)
    ooms = [tokens_of(run) for run in members if run.status == "gpu_oom"]
    places = [point_of(run) for run in measured]
    return Fit(
        label=label,
        quantity=quantity,
        line=line,
        tokens=tokens,
        bytes=sizes,
        flat_until=None if line.hinge is None else flat_until(tokens, sizes, FLAT_BYTES),
        errors=tuple(leave_one_out(tokens, sizes)),
        oom_tokens=min(ooms, default=None),
        lengths=tuple(sorted({length for _, length in places})),
        batches=tuple(sorted({micro for micro, _ in places})),
        memory_gib=value_at(measured[0].config, "hardware.memory_gib"),
    )


def longest(fit: Fit, memory_gib: float, margin: float = MARGIN) -> Capacity:
    """Find the most tokens that fit in ``memory_gib`` while the share ``margin`` of the memory stays free."""
    budget = memory_gib * GIB * (1 - margin)

    def fits(tokens: int) -> bool:
        interval = fit.line.interval_at(tokens)
        return fit.line.at(tokens) + (interval if interval != float("inf") else 0.0) <= budget

    if not fits(1):
        return Capacity(None, "memory", False)
    low, high = 1, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    limit = "memory"
    if fit.oom_tokens is not None and low >= fit.oom_tokens:
        low, limit = max(fit.tokens), "oom"
    return Capacity(low, limit, low > max(fit.tokens))
