"""Results of a sweep: of its jobs and of its searches, and what an observer is told while it runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from memlab.core.record import FINAL, FITS, OUT_OF_MEMORY, Record
from memlab.runs.job import Job

SLOWER = 0.9
"""A size thrashes if it trains fewer tokens per second than this share of the fastest smaller size."""


@dataclass
class JobResult:
    """The result of one job of a sweep.

    ``how``: measured, predicted, done (by an earlier run), implied, unsupported or not reached.
    """

    job: Job
    record: Record | None
    how: str


@dataclass
class Schedule:
    """The jobs of a sweep before anything runs: the results that are known, and launches of the other jobs."""

    known: list[JobResult] = field(default_factory=list)
    launches: list[list[Job]] = field(default_factory=list)

    def __add__(self, other: "Schedule") -> "Schedule":
        return Schedule(self.known + other.known, self.launches + other.launches)


@dataclass
class SearchResult:
    """The result of one search. ``tried``: size -> record; ``best``: the largest confirmed size."""

    job: Job
    tried: dict[int, Record] = field(default_factory=dict)
    best: int | None = None
    confirmation: Record | None = None
    gave_up: str | None = None

    @property
    def fits(self) -> int:
        """The largest size that trained, or is predicted to fit; 0 if none did."""
        return max((size for size, record in self.tried.items() if trains(record)), default=0)

    @property
    def fails(self) -> int | None:
        """The smallest size that ran out of memory, or is predicted not to fit safely; ``None`` if none did."""
        ended = ("ok", *OUT_OF_MEMORY)
        too_large = (size for size, record in self.tried.items() if record.status in ended and not trains(record))
        return min(too_large, default=None)

    def rate(self, size: int) -> float:
        """Return the tokens per second at a size that trained; without tokens, the samples per second; else 0."""
        summary = self.tried[size].summary
        return summary["tokens_per_second"] or summary["samples_per_second"] or 0.0

    def thrashes(self, size: int) -> bool:
        """Whether a size fits, but the allocator had to free and retry, or a smaller size is faster (``SLOWER``)."""
        record = self.tried[size]
        if record.status != "ok":
            return False
        rate = self.rate(size)
        smaller = [self.rate(less) for less, other in self.tried.items() if less < size and other.status == "ok"]
        return bool(record.summary.get("num_alloc_retries")) or rate < SLOWER * max(smaller, default=0.0)


def trains(record: Record) -> bool:
    """Whether a size trained or, in a prediction, fits: a size at the edge of the memory does not count."""
    return record.status == "ok" and record.summary.get("verdict", FITS) == FITS


class SweepObserver:
    """Callbacks of a running sweep. Several threads may call the methods, but only one at a time."""

    def began(self, to_run: Sequence[Sequence[Job]], known: Sequence[JobResult]) -> None: ...
    def waiting(self, text: str) -> None: ...
    def launched(self, jobs: Sequence[Job], gpu_ids: Sequence[str]) -> None: ...
    def finished(self, result: JobResult) -> None: ...


def is_complete(results: Iterable[JobResult]) -> bool:
    """Whether every job has a record with a final status, which another run would not change."""
    return all(result.record is not None and result.record.status in FINAL for result in results)
