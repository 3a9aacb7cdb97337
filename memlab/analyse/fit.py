"""Fit of memory over tokens for each configuration, and the longest sequence and largest batch that fit by it.

The fit is by least squares, of a straight line or a hinge (flat, then a line) in one variable, with intervals. The
hinge ``y = a + b * max(0, x - h)`` replaces the line ``y = a + b * x`` if its Bayesian information criterion,
n ln(SSE / n) + k ln n, is lower by at least :data:`STRONG`, ``b`` is positive, and at least :data:`MIN_SIDE` different
x lie on each side of ``h``.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf, log, sqrt
from statistics import median

import numpy as np

from memlab.analyse.identity import configurations, point_of, tokens_of
from memlab.analyse.run_view import RunView, peak, value_at
from memlab.core.sizes import GIB, MIB

STRONG = 6.0
"""Difference of the criterion that is strong evidence (Kass and Raftery, 1995)."""

MIN_SIDE = 3

MANY = 200
"""Points above which :func:`leave_one_out` does not refit the line for each point."""

_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T_975_BEYOND = ((20, 2.131), (30, 2.086), (60, 2.042), (120, 2.000), (inf, 1.980))


@dataclass(frozen=True)
class Line:
    """The line ``intercept + slope * max(0, x - hinge)``; ``hinge`` is ``None`` for a straight line through all x.

    Intervals are 95 %, from Student's t. The intervals of a line with a hinge treat the hinge as known.
    """

    intercept: float
    slope: float
    hinge: float | None
    hinge_interval: tuple[float, float] | None
    n: int
    residual: float  # standard deviation of the residuals, in the unit of y
    r2: float
    mean_z: float  # mean of z = max(0, x - hinge), or of x without a hinge
    spread_z: float  # sum of squared deviations of z from its mean

    @property
    def freedom(self) -> int:
        return self.n - (2 if self.hinge is None else 3)

    @property
    def slope_interval(self) -> float:
        """Half-width of the interval of the slope; infinite without degrees of freedom."""
        return self._t() * self.residual / sqrt(self.spread_z) if self.freedom > 0 else inf

    def at(self, x: float) -> float:
        return self.intercept + self.slope * self.z(x)

    def interval_at(self, x: float) -> float:
        """Return the half-width of the interval of a new measurement at ``x``; infinite without degrees of freedom."""
        if self.freedom <= 0:
            return inf
        distance = (self.z(x) - self.mean_z) ** 2 / self.spread_z
        return self._t() * self.residual * sqrt(1 + 1 / self.n + distance)

    def z(self, x: float) -> float:
        """Return the variable in which the line is straight."""
        return x if self.hinge is None else max(0.0, x - self.hinge)

    def _t(self) -> float:
        if self.freedom <= len(_T_975):
            return _T_975[self.freedom - 1]
        return next(t for beyond, t in _T_975_BEYOND if self.freedom <= beyond)


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit the better of line and hinge (see the module). Raises ValueError for fewer than two different x."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(np.unique(xs)) < 2:
        raise ValueError("a line needs two different x")
    line, line_error = _least_squares(xs, ys, None)
    found = _best_hinge(xs, ys)
    if found is None or _criterion(line_error, len(xs), 2, ys) - _criterion(found[1], len(xs), 3, ys) < STRONG:
        return line
    hinge, _, interval = found
    return _least_squares(xs, ys, hinge, interval)[0]


def leave_one_out(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Return the relative error at each point of a fit to all other points.

    Up to :data:`MANY` points, each fit chooses line or hinge again. With more points, one point does not change
    the choice, so the hinge is kept and the error follows from the point's leverage.
    """
    if len(x) > MANY:
        line = fit_line(x, y)
        leverages = [1 / line.n + (line.z(each) - line.mean_z) ** 2 / line.spread_z for each in x]
        points = zip(x, y, leverages, strict=True)
        return [(line.at(each) - value) / (1 - leverage) / value for each, value, leverage in points]
    errors = []
    for index in range(len(x)):
        others_x, others_y = [*x[:index], *x[index + 1 :]], [*y[:index], *y[index + 1 :]]
        if len(set(others_x)) >= 2:
            errors.append(fit_line(others_x, others_y).at(x[index]) / y[index] - 1)
    return errors


def flat_until(x: Sequence[float], y: Sequence[float], tolerance: float) -> float | None:
    """Find the largest x up to which every y is within ``tolerance`` of the first y; ``None`` if only the first is."""
    first, *others = sorted(zip(x, y, strict=True))
    flat = list(takewhile(lambda point: abs(point[1] - first[1]) <= tolerance, others))
    return flat[-1][0] if flat else None


def _least_squares(x: np.ndarray, y: np.ndarray, hinge: float | None, interval=None) -> tuple[Line, float]:
    z = x if hinge is None else np.clip(x - hinge, 0, None)
    spread = float(((z - z.mean()) ** 2).sum())
    slope = float(((z - z.mean()) * (y - y.mean())).sum()) / spread
    intercept = float(y.mean()) - slope * float(z.mean())
    error = float(((y - intercept - slope * z) ** 2).sum())
    total = float(((y - y.mean()) ** 2).sum())
    freedom = len(x) - (2 if hinge is None else 3)
    residual = sqrt(error / freedom) if freedom > 0 else 0.0
    r2 = 1 - error / total if total else 1.0
    return Line(intercept, slope, hinge, interval, len(x), residual, r2, float(z.mean()), spread), error


def _best_hinge(x: np.ndarray, y: np.ndarray) -> tuple[float, float, tuple[float, float]] | None:
    """Find the measured x whose hinge has the least squared error: return x, the error, and the 95 % interval of x;
    ``None`` if no hinge begins a rise.

    All candidates are computed at once: with sorted points, the sums over the points right of each candidate are
    running sums.
    """
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    candidates = np.unique(x)[MIN_SIDE - 1 : -MIN_SIDE]
    first = np.searchsorted(x, candidates, side="right")
    right = len(x) - first
    u, v = x - x.mean(), y - y.mean()
    sums = (np.append(np.cumsum(each[::-1])[::-1], 0.0)[first] for each in (u, u * u, v, u * v))
    sum_u, sum_uu, sum_v, sum_uv = sums
    h = candidates - x.mean()
    z_sum = sum_u - right * h
    z_square = sum_uu - 2 * h * sum_u + right * h**2
    zy = sum_uv - h * sum_v  # v has mean zero, so no term of means is subtracted
    spread = z_square - z_sum**2 / len(x)
    slopes = zy / spread
    errors = np.maximum((v**2).sum() - zy**2 / spread, 0.0)
    errors[slopes <= 0] = inf
    if errors.min(initial=inf) == inf:
        return None
    best = int(np.argmin(errors))
    freedom = max(1, len(x) - 3)
    likely = candidates[errors <= errors[best] * (1 + 3.84 / freedom)]  # 3.84: chi squared, 1 degree, 95 %
    return float(candidates[best]), float(errors[best]), (float(likely.min()), float(likely.max()))


def _criterion(error: float, n: int, parameters: int, y: np.ndarray) -> float:
    floor = n * (1e-9 * float(np.abs(y).max())) ** 2  # so that an exact fit does not win by log(0)
    return n * log(max(error, floor, 1e-300) / n) + parameters * log(n)


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
        return fit.line.at(tokens) + (interval if interval != inf else 0.0) <= budget

    if not fits(1):
        return Capacity(None, "memory", False)
    most = bisect_left(range(1, 1 << 40), True, key=lambda tokens: not fits(tokens))
    limit = "memory"
    if fit.oom_tokens is not None and most >= fit.oom_tokens:
        most, limit = max(fit.tokens), "oom"
    return Capacity(most, limit, most > max(fit.tokens))
