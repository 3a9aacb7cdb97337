"""Which of the configurations that were measured or predicted to train with: time, dollars and headroom of a training.

A training of S samples takes S / (samples of an optimizer step) steps. A run was timed with its own accumulation; more
of it is taken at the price of whole steps, which is an upper bound: the optimizer step is paid once for all of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from memlab.analyse.identity import configurations, families, point_of
from memlab.analyse.run import Run, peak, value_at
from memlab.conf_files import overrides_of
from memlab.config import from_dict
from memlab.errors import MemlabError
from memlab.machine import GIB
from memlab.plan import deepspeed_config

THRASH = 0.1
"""Share of samples/s lost against a smaller batch of the same configuration from which a run counts as thrashing."""

TIGHT = 0.05
"""Share of the GPU's memory below which headroom is called tight: fragmentation and longer runs need some."""


@dataclass(frozen=True)
class Job:
    """The training that is asked about. ``effective_batch``: samples of an optimizer step; ``None``: any."""

    samples: int
    epochs: float
    tokens: int
    effective_batch: int | None = None
    usd_per_hour: float | None = None
    memory_gib: float | None = None


@dataclass(frozen=True)
class Candidate:
    """One way to do the job. Times in seconds, sizes in bytes; ``None`` where the price or the memory is not known."""

    run: Run
    label: str
    micro: int
    accumulation: int
    effective_batch: int
    seconds: float
    usd: float | None
    headroom_bytes: float | None
    cautions: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """``candidates`` by wall time. ``excluded``: runs that cannot do the job, with the reason."""

    job: Job
    candidates: tuple[Candidate, ...]
    excluded: tuple[tuple[str, str], ...]
    best: Candidate
    cheapest: Candidate | None
    next: tuple[str, ...]  # what to measure next, a sentence each


def advise(runs: Sequence[Run], job: Job) -> Advice:
    """Raises :class:`MemlabError` when no run can do the job, with what stands in the way."""
    here = [run for run in runs if value_at(run.config, "seq_len.tokens") == job.tokens]
    if not here:
        lengths = sorted({value_at(run.config, "seq_len.tokens") for run in runs})
        near = ", ".join(f"{length:,}" for length in sorted(lengths, key=lambda length: abs(length - job.tokens))[:5])
        raise MemlabError(
            f"No run has {job.tokens:,} tokens; nearest: {near or 'none'}. Measure there, or ask for one."
        )
    candidates, excluded = [], []
    for label, members in configurations(here).items():
        for run in members:
            found = _candidate(run, label, job, members)
            (excluded.append((run.run_id, found)) if isinstance(found, str) else candidates.append(found))
    if not candidates:
        why = "; ".join(dict.fromkeys(reason for _, reason in excluded))
        raise MemlabError(f"None of {len(here)} runs at {job.tokens:,} tokens can do it: {why}.")
    candidates.sort(key=lambda candidate: candidate.seconds)
    sound = [candidate for candidate in candidates if not candidate.cautions] or candidates
    priced = [candidate for candidate in sound if candidate.usd is not None]
    return Advice(
        job=job,
        candidates=tuple(candidates),
        excluded=tuple(excluded),
        best=sound[0],
        cheapest=min(priced, key=lambda candidate: candidate.usd, default=None),
        next=tuple(_measure_next(sound[0], runs)),
    )


def _candidate(run: Run, label: str, job: Job, members: Iterable[Run]) -> Candidate | str:
    """The candidate, or why there is none."""
    if run.status != "ok":
        return f"ended as {run.status}"
    if not run.summary.get("samples_per_second"):
        return "its speed is not known"
    micro, gpus = value_at(run.config, "batch.micro"), value_at(run.config, "hardware.gpus")
    accumulation = value_at(run.config, "batch.accumulation") or 1
    if job.effective_batch is not None:
        if job.effective_batch % (micro * gpus):
            return f"an effective batch of {job.effective_batch} is no multiple of its batch x GPUs"
        accumulation = job.effective_batch // (micro * gpus)
    memory = job.memory_gib or value_at(run.config, "hardware.memory_gib")
    reserved = peak(run, "peak_reserved_bytes") or peak(run, "peak_allocated_bytes")
    headroom = None if memory is None or reserved is None else memory * GIB - reserved
    if headroom is not None and headroom < 0:
        return f"does not fit in {memory:g} GiB"
    seconds = job.samples * job.epochs / run.summary["samples_per_second"]
    price = job.usd_per_hour if job.usd_per_hour is not None else value_at(run.config, "hardware.usd_per_hour")
    return Candidate(
        run=run,
        label=label,
        micro=micro,
        accumulation=accumulation,
        effective_batch=micro * gpus * accumulation,
        seconds=seconds,
        usd=None if price is None else seconds / 3600 * price,
        headroom_bytes=headroom,
        cautions=tuple(_cautions(run, headroom, memory, members)),
    )


def _cautions(run: Run, headroom: float | None, memory: float | None, members: Iterable[Run]) -> list[str]:
    cautions = []
    rate = run.summary["samples_per_second"]
    smaller = [
        other.summary["samples_per_second"]
        for other in members
        if other.status == "ok" and point_of(other) < point_of(run) and other.summary.get("samples_per_second")
    ]
    lost = 1 - rate / max(smaller, default=rate)
    if lost > THRASH:
        cautions.append(f"thrashes: {lost:.0%} fewer samples/s than a smaller batch")
    if run.summary.get("num_alloc_retries"):
        cautions.append(f"thrashes: the allocator had to retry {run.summary['num_alloc_retries']} times")
    if headroom is not None and headroom < TIGHT * memory * GIB:
        cautions.append(f"tight: {headroom / (memory * GIB):.1%} of the memory is left")
    return cautions + run.incomplete


def _measure_next(best: Candidate, runs: Iterable[Run]) -> list[str]:
    """Points beyond the edge of what was tried, where the best one lies at it."""
    length = value_at(best.run.config, "seq_len.tokens")
    here = [run for run in runs if point_of(run)[1] == length]
    same = next(members for members in families(here) if best.run in members)
    beyond = [point_of(run)[0] for run in same if point_of(run)[0] > best.micro]
    below = [point_of(run)[0] for run in same if point_of(run)[0] < best.micro]
    step = best.micro - max(below, default=best.micro - 1)
    if not beyond:
        return [
            f"batch.micro={best.micro + step}: {best.micro} is the largest batch that was tried of this configuration, "
            "so the best may lie beyond."
        ]
    gap = min(beyond) - best.micro
    if gap > 1:
        return [f"batch.micro={best.micro + ceil(gap / 2)}: nothing was tried between {best.micro} and {min(beyond)}."]
    return []


def command_words(candidate: Candidate) -> list[str]:
    """The words that run the candidate, quoted for a shell: the options of its groups and the values that go beyond."""
    return ["python", "launch.py", *overrides_of(candidate.run.choices, _as_advised(candidate))]


def deepspeed_of(candidate: Candidate) -> dict[str, Any]:
    """The DeepSpeed JSON to train the candidate with."""
    return deepspeed_config(from_dict(_as_advised(candidate)))


def _as_advised(candidate: Candidate) -> dict[str, Any]:
    """The configuration of the run with the accumulation that the job needs."""
    config = candidate.run.config
    return {**config, "batch": {**config["batch"], "accumulation": candidate.accumulation}}
