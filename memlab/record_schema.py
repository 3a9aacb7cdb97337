"""What the values inside a record may be; the record itself, and those of a rank, are in memlab/record.py.

memlab/schema.py makes a check of these types: what was read is of them, and nothing behind it looks again. A key that
is optional, or may be ``None``, is so for whoever uses it.
"""

from typing import Annotated, Any, TypedDict

from memlab.ranges import LARGEST_WHOLE, Range
from memlab.schema import Limits

Name = Annotated[str, Limits(printable=True)]
Bytes = Annotated[int, Limits(range=Range(0, LARGEST_WHOLE))]
Count = Annotated[int, Limits(range=Range(0, LARGEST_WHOLE))]
Index = Annotated[int, Limits(range=Range(0, 1 << 16))]
"""A rank, or a number of ranks."""

Figure = Annotated[float, Limits(range=Range(-1e30, 1e30))]
"""No figure of a run is larger. With these bounds no product of a few of them overflows."""

Positive = Annotated[float, Limits(range=Range(1e-12, 1e30))]
"""Something to divide by: the seconds of a step, a rate."""

Seconds = Annotated[float, Limits(range=Range(0, 1e30))]


class OverRanks(TypedDict):
    """A figure of every rank: its largest, mean and smallest value."""

    max: Figure
    mean: Figure
    min: Figure


SPEED = (
    *("step_seconds", "step_seconds_min", "step_seconds_max"),
    *("iterations_per_second", "samples_per_second", "tokens_per_second"),
)
"""Figures of a summary that are all there, or none."""


class Summary(TypedDict, total=False):
    """``Record.summary``; any other key holds a figure, or one of every rank."""

    step_seconds: Positive  # the median of the measured steps
    step_seconds_min: Positive
    step_seconds_max: Positive | None  # None: nobody knows, since it is a lower bound
    step_seconds_lower_bound: Positive  # at the datasheet's speed
    step_seconds_basis: Name  # calibration or lower bound
    iterations_per_second: Positive
    samples_per_second: Positive
    tokens_per_second: Positive
    parameters: Count
    verdict: Name  # of the worst rank


class StepError(TypedDict):
    """The error of predicted step times like this one, as shares of it."""

    median: Figure
    p90: Figure


class Steps(TypedDict, total=False):
    """``Record.steps``."""

    warmup: Count
    measured: Count
    averaged_over: Count  # of an import that knows the mean of its steps alone
    repeat: Count
    repeats: Count
    seconds: list[Seconds]  # the slowest rank of each measured step
    warmup_seconds: list[Seconds]
    doubts: list[str]
    basis: Name
    basis_reason: str | None
    error: StepError | None
    calibration: str | None


class Timing(TypedDict, total=False):
    """``Record.timing``: where the wall clock went; any other key holds seconds, too."""

    step_s_range: Annotated[list[Seconds | None], Limits(length=2)]  # open at its end for a lower bound


class Oom(TypedDict, total=False):
    """Where an out-of-memory came, and of how much."""

    phase: str | None
    step: Count | None
    requested_bytes: Bytes | None
    event: Count
    message: str | None


class Breakdown(TypedDict):
    """Bytes by kind at the peak of each phase, and the places that made most of what lived at the peak of the run."""

    phases: dict[str, dict[str, int]]
    peak_phase: str | None
    largest: list[dict[str, Any]]


class Curve(TypedDict):
    """Memory over one step; lists of the same length but for ``phases``: event and name of each that begins."""

    event: list[Count]
    allocated_bytes: list[Bytes]
    reserved_bytes: list[Bytes]
    phases: list[Annotated[list[int | str], Limits(length=2)]]
