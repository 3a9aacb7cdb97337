"""Advice on a training: time, cost and memory headroom with each measured or predicted run, and the best run.

A training of S samples takes S / (samples per second of the run) seconds. The run was timed with its own gradient
accumulation. With more accumulation this time is an upper bound, because the optimizer then steps less often.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from memlab.analyse.diff import deepspeed_json
from memlab.analyse.identity import configurations, families, point_of
from memlab.analyse.run_view import RunView, is_command, peak, value_at
from memlab.core.config import from_dict
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.errors import MemlabError
from memlab.core.sizes import GIB
from memlab.files.conf_files import overrides_of

THRASH = 0.1
"""A run thrashes if it loses more than this share of the samples/s of a smaller batch of the same configuration."""

TIGHT = 0.05
"""Headroom below this share of the GPU's memory is tight: fragmentation and longer runs need some headroom."""


@dataclass(frozen=True)
class Training:
    """A whole training: ``samples`` times ``epochs`` at sequence length ``tokens``.

    ``effective_batch``: samples of an optimizer step; ``None``: any.
    """

    samples: int
    epochs: float
    tokens: int
    effective_batch: int | None = None
    usd_per_hour: float | None = None
    memory_gib: float | None = None


@dataclass(frozen=True)
class Projection:
    """One run's configuration applied to the whole training. ``usd`` and ``headroom_bytes`` are ``None`` if unknown."""

    run: RunView
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
    """Projections of a training, fastest first. ``excluded``: runs that cannot do the training, with the reason.

    ``best`` and ``cheapest`` have no cautions if any projection has none.
    """

    training: Training
    projections: tuple[Projection, ...]
    excluded: tuple[tuple[str, str], ...]
    best: Projection
    cheapest: Projection | None
    next: tuple[str, ...]  # points to measure next, a sentence each


def advise(runs: Sequence[RunView], training: Training) -> Advice:
    """Rank the runs at the training's sequence length. Raises :class:`MemlabError`, with the reasons, if none fits."""
    here = [run for run in runs if value_at(run.config, "seq_len.tokens") == training.tokens]
    if not here:
        lengths = sorted({value_at(run.config, "seq_len.tokens") for run in runs})
        near = ", ".join(
            f"{length:,}" for length in sorted(lengths, key=lambda length: abs(length - training.tokens))[:5]
        )
        raise MemlabError(
            f"No run has a sequence length of {training.tokens:,} tokens; the nearest have {near or 'none'}. Measure "
            f"{training.tokens:,} tokens, or give one of these lengths as --seq-len."
        )
    projections, excluded = [], []
    for label, members in configurations(here).items():
        for run in members:
            found = _projection(run, label, training, members)
            if isinstance(found, str):
                excluded.append((run.run_id, found))
            else:
                projections.append(found)
    if not projections:
        why = "; ".join(dict.fromkeys(reason for _, reason in excluded))
        raise MemlabError(f"None of the {len(here)} runs at {training.tokens:,} tokens can do this training: {why}.")
    projections.sort(key=lambda projection: projection.seconds)
    sound = [projection for projection in projections if not projection.cautions] or projections
    priced = [projection for projection in sound if projection.usd is not None]
    return Advice(
        training=training,
        projections=tuple(projections),
        excluded=tuple(excluded),
        best=sound[0],
        cheapest=min(priced, key=lambda projection: projection.usd, default=None),
        next=tuple(_measure_next(sound[0], runs)),
    )


def _projection(run: RunView, label: str, training: Training, members: Iterable[RunView]) -> Projection | str:
    """Return the projection, or the reason why the run cannot do the training."""
    if run.status != "ok":
        return f"ended as {run.status}"
    if not run.summary.get("samples_per_second"):
        return "its speed is unknown"
    micro, gpus = value_at(run.config, "batch.micro"), value_at(run.config, "hardware.gpus")
    accumulation = value_at(run.config, "batch.accumulation") or 1
    if training.effective_batch is not None:
        if training.effective_batch % (micro * gpus):
            return (
                f"an effective batch of {training.effective_batch} is not a multiple of its micro batch x GPUs "
                f"({micro * gpus})"
            )
        accumulation = training.effective_batch // (micro * gpus)
    memory = training.memory_gib or value_at(run.config, "hardware.memory_gib")
    reserved = peak(run, "peak_reserved_bytes") or peak(run, "peak_allocated_bytes")
    headroom = None if memory is None or reserved is None else memory * GIB - reserved
    if headroom is not None and headroom < 0:
        return f"does not fit in {memory:g} GiB"
    seconds = training.samples * training.epochs / run.summary["samples_per_second"]
    price = (
        training.usd_per_hour if training.usd_per_hour is not None else value_at(run.config, "hardware.usd_per_hour")
    )
    return Projection(
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


def _cautions(run: RunView, headroom: float | None, memory: float | None, members: Iterable[RunView]) -> list[str]:
    cautions = []
    rate = run.summary["samples_per_second"]
    smaller = [
        other.summary["samples_per_second"]
        for other in members
        if other.status == "ok" and point_of(other) < point_of(run) and other.summary.get("samples_per_second")
    ]
    lost = 1 - rate / max(smaller, default=rate)
    if lost > THRASH:
        cautions.append(f"thrashes: {100 * lost:.0f} % fewer samples/s than a smaller batch")
    if run.summary.get("num_alloc_retries"):
        cautions.append(f"thrashes: the allocator had to retry {run.summary['num_alloc_retries']} times")
    if headroom is not None and headroom < TIGHT * memory * GIB:
        cautions.append(f"tight: {100 * headroom / (memory * GIB):.1f} % of the memory is free")
    return cautions + run.incomplete


def _measure_next(best: Projection, runs: Iterable[RunView]) -> list[str]:
    """Suggest a larger micro batch to measure, if the best projection's is the largest tried or a gap follows it."""
    length = value_at(best.run.config, "seq_len.tokens")
    here = [run for run in runs if point_of(run)[1] == length]
    same = next(members for members in families(here) if best.run in members)
    beyond = [point_of(run)[0] for run in same if point_of(run)[0] > best.micro]
    below = [point_of(run)[0] for run in same if point_of(run)[0] < best.micro]
    step = best.micro - max(below, default=best.micro - 1)
    if not beyond:
        return [
            f"batch.micro={best.micro + step}: {best.micro} is the largest batch tried with this configuration, and a "
            "larger one may be faster."
        ]
    gap = min(beyond) - best.micro
    if gap > 1:
        return [f"batch.micro={best.micro + ceil(gap / 2)}: nothing was tried between {best.micro} and {min(beyond)}."]
    return []


def command_words(projection: Projection) -> list[str]:
    """Return the command that runs the projection: group options, then values that differ from these options.

    The words are quoted for a shell. A command of the user's own is the one that was measured.
    """
    if is_command(projection.run):
        return [projection.run.config["training"]["command"]]
    return ["python", "launch.py", *overrides_of(projection.run.choices, _as_advised(projection))]


def deepspeed_of(projection: Projection) -> dict[str, Any]:
    """Return the DeepSpeed JSON for training with the projection; of a user's command, the one that it used."""
    if is_command(projection.run):
        return deepspeed_json(projection.run)
    return deepspeed_config(from_dict(_as_advised(projection)))


def _as_advised(projection: Projection) -> dict[str, Any]:
    """Return the configuration of the run with the accumulation that the training needs."""
    config = projection.run.config
    return {**config, "batch": {**config["batch"], "accumulation": projection.accumulation}}
