"""Advice on a training job: time, cost and memory headroom with each measured or predicted run, and the best of them.

A training of S samples takes S / (samples per second of the run) seconds. The run was timed with its own gradient
accumulation. With more accumulation this time is an upper bound, because the optimizer then steps less often.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from memlab.analyse.identity import configurations, families, point_of
from memlab.analyse.run import Run, peak, value_at
from memlab.core.config import from_dict
from memlab.core.errors import MemlabError
from memlab.core.plan import deepspeed_config
from memlab.files.conf_files import overrides_of
from memlab.system.machine import GIB

THRASH = 0.1
"""A run thrashes if it loses more than this share of the samples/s of a smaller batch of the same configuration."""

TIGHT = 0.05
"""Headroom below this share of the GPU's memory is tight: fragmentation and longer runs need some headroom."""


@dataclass(frozen=True)
class Job:
    """A training job: ``samples`` times ``epochs`` at sequence length ``tokens``.

    ``effective_batch``: samples of an optimizer step; ``None``: any.
    """

    samples: int
    epochs: float
    tokens: int
    effective_batch: int | None = None
    usd_per_hour: float | None = None
    memory_gib: float | None = None


@dataclass(frozen=True)
class Candidate:
    """One run's configuration applied to the job. ``usd`` and ``headroom_bytes`` are ``None`` where not known."""

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
    """Candidates for a job, fastest first. ``excluded``: runs that cannot do the job, with the reason.

    ``best`` and ``cheapest`` have no cautions if any candidate has none.
    """

    job: Job
    candidates: tuple[Candidate, ...]
    excluded: tuple[tuple[str, str], ...]
    best: Candidate
    cheapest: Candidate | None
    next: tuple[str, ...]  # points to measure next, a sentence each


def advise(runs: Sequence[Run], job: Job) -> Advice:
    """Rank the runs at the job's sequence length. Raises :class:`MemlabError`, with the reasons, if none can do it."""
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
    """Return the candidate, or the reason why the run cannot do the job."""
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
    """Suggest a larger micro batch to measure, if the best candidate's is the largest tried or a gap follows it."""
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
    """Return the command that runs the candidate: group options, then values that differ from these options.

    The words are quoted for a shell.
    """
    return ["python", "launch.py", *overrides_of(candidate.run.choices, _as_advised(candidate))]


def deepspeed_of(candidate: Candidate) -> dict[str, Any]:
    """Return the DeepSpeed JSON for training with the candidate."""
    return deepspeed_config(from_dict(_as_advised(candidate)))


def _as_advised(candidate: Candidate) -> dict[str, Any]:
    """Return the configuration of the run with the accumulation that the job needs."""
    config = candidate.run.config
    return {**config, "batch": {**config["batch"], "accumulation": candidate.accumulation}}
