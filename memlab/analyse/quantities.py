"""Quantities of a run that are compared with other runs, each with its noise."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, stdev

from memlab.analyse.run_view import RunView, peak, value_at
from memlab.core.basis import EXACT, Basis, comparable
from memlab.core.sizes import MIB
from memlab.core.summary import BYTES

RATES = ("iterations_per_second", "samples_per_second", "tokens_per_second", "usd_per_million_tokens")
"""Quantities computed from the step time; they have the same relative noise."""

PHASE_QUANTITIES = ("peak_allocated_bytes", "peak_reserved_bytes")

SMALL = MIB
"""Bytes. A relative change is not computed from a base below this, for example 13 bytes of pinned memory."""

CHANGED = 0.01
"""Share of the base: if the noise is unknown, a difference above this share is a finding."""

STANDARD_ERROR_OF_MEDIAN = 1.2533
"""Standard error of the median of a normal sample, in standard errors of the mean: sqrt(pi / 2)."""


@dataclass(frozen=True)
class Quantity:
    """A value with its noise (how far chance moves it) in the same unit; ``None``: the noise is unknown.

    Noise of memory is the spread over ranks, which do the same work. Noise of speed is two standard errors of the
    median step, of a predicted one the error of the calibration. If an experiment was repeated, the spread over repeats
    replaces a smaller noise. A relative change is computed only if the base is at least ``small``, in the same unit.
    ``basis``: how the value is known; a bound is not compared.
    """

    value: float
    noise: float | None = None
    small: float = 0.0
    basis: Basis = EXACT


@dataclass(frozen=True)
class Difference:
    """The difference ``other - base``. ``within_noise`` is ``None`` if neither quantity has a known noise."""

    base: Quantity
    other: Quantity

    @property
    def absolute(self) -> float:
        return self.other.value - self.base.value

    @property
    def relative(self) -> float | None:
        """Difference as a share of the base; ``None`` if the base is zero or small."""
        base = self.base.value
        return self.absolute / base if base and abs(base) >= self.base.small else None

    @property
    def noise(self) -> float | None:
        """Larger noise of the two quantities: a difference up to this is no finding."""
        return largest_noise((self.base, self.other))

    @property
    def within_noise(self) -> bool | None:
        return None if self.noise is None else abs(self.absolute) <= self.noise

    @property
    def is_finding(self) -> bool:
        """Whether the difference is above the noise or, if the noise is unknown, above :data:`CHANGED`."""
        if self.within_noise is None:
            return abs(self.absolute) > CHANGED * abs(self.base.value)
        return not self.within_noise


def largest_noise(quantities: Iterable[Quantity]) -> float | None:
    """Return the largest noise of the quantities whose noise is known; ``None`` if none is."""
    return max((quantity.noise for quantity in quantities if quantity.noise is not None), default=None)


def differences(base: Mapping[str, Quantity], other: Mapping[str, Quantity]) -> dict[str, Difference]:
    """Compare the quantities that both runs have, and of which neither is a bound."""
    both = {key: (base[key], other[key]) for key in base if key in other}
    return {key: Difference(*pair) for key, pair in both.items() if comparable(*(each.basis for each in pair))}


def quantities_of(run: RunView) -> dict[str, Quantity]:
    """Return the quantities by name: memory, phases, rates.

    Examples: ``peak_reserved_bytes`` (largest rank), ``backward.peak_reserved_bytes``, ``tokens_per_second``.
    """
    several = (value_at(run.config, "hardware.gpus") or 1) > 1
    found = {key: _over_ranks(run.summary[key], several) for key in BYTES if isinstance(run.summary.get(key), dict)}
    for phase, values in run.phases.items():
        found |= {f"{phase}.{key}": _over_ranks(values[key], several) for key in PHASE_QUANTITIES if key in values}
    step = run.summary.get("step_seconds")
    if step:
        noise = run.basis.error or _relative_noise_of_median(run.step_seconds)
        for key in ("step_seconds", *RATES):
            value = run.summary.get(key)
            if value is not None:
                found[key] = Quantity(value, None if noise is None else noise * value, basis=run.basis)
    if (retries := run.summary.get("num_alloc_retries")) is not None:
        found["num_alloc_retries"] = Quantity(retries)
    return found


def held_quantity(runs: Sequence[RunView]) -> str:
    """Return the quantity for memory in live tensors: allocated, or active if allocated was not measured."""
    key = "peak_allocated_bytes"
    return key if any(peak(run, key) is not None for run in runs) else "peak_active_bytes"


def merge_repeats(repeats: Sequence[Mapping[str, Quantity]]) -> dict[str, Quantity]:
    """Take the median of each quantity over repeats of one experiment; the noise is at least their spread."""
    if len(repeats) == 1:
        return dict(repeats[0])
    merged = {}
    for key in [key for key in repeats[0] if all(key in each for each in repeats)]:
        values = [each[key].value for each in repeats]
        noise = max(max(values) - min(values), largest_noise(each[key] for each in repeats) or 0.0)
        merged[key] = replace(repeats[0][key], value=median(values), noise=noise)
    return merged


def interpolate(low: Mapping[str, Quantity], high: Mapping[str, Quantity], share: float) -> dict[str, Quantity]:
    """Interpolate each quantity at ``share`` of the way from ``low`` to ``high``, with the larger noise of the two."""
    between = {}
    for key in [key for key in low if key in high]:
        a, b = low[key], high[key]
        value = a.value + share * (b.value - a.value)
        if key == "usd_per_million_tokens":  # proportional to 1 / rate, and the rate is linear
            value = 1 / (1 / a.value + share * (1 / b.value - 1 / a.value))
        between[key] = replace(a if a.basis.is_bound else b, value=value, noise=largest_noise((a, b)))
    return between


def _over_ranks(values: Mapping[str, float], several: bool) -> Quantity:
    return Quantity(values["max"], values["max"] - values["min"] if several else None, SMALL)


def _relative_noise_of_median(seconds: Sequence[float]) -> float | None:
    if len(seconds) < 3:
        return None
    return 2 * STANDARD_ERROR_OF_MEDIAN * stdev(seconds) / len(seconds) ** 0.5 / median(seconds)
