"""Advice on a training: time, cost and memory headroom with each measured or predicted run, and the best run.

A training of S samples takes S / (samples per second of the run) seconds. The run was timed with its own gradient
accumulation. With more accumulation this time is an upper bound, because the optimizer then steps less often.

A predicted time may be a lower bound only (:class:`memlab.core.basis.Basis`). Bounds rank nothing: runs whose time is
known come first, fastest first, and the others follow by free memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from operator import itemgetter
from typing import Any

from memlab.analyse.diff import used_deepspeed_json
from memlab.analyse.identity import configurations, families, point_of
from memlab.analyse.run_view import RunView, is_command, taken_bytes, value_at, why_not
from memlab.core.basis import Basis, comparable
from memlab.core.config import MISSING, Hardware
from memlab.core.config_values import from_dict, with_own_apart
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.errors import MemlabError
from memlab.core.sizes import GIB
from memlab.files.conf_files import overrides_of

THRASH = 0.1
"""A run thrashes if it loses more than this share of the samples/s of a smaller batch of the same configuration."""

TIGHT = 0.05
"""Headroom below this share of the GPU's memory is tight: fragmentation and longer runs need some headroom."""


@dataclass(frozen=True)
class TrainingGoal:
    """A whole training: ``samples`` times ``epochs`` at sequence length ``tokens``.

    ``samples``, ``tokens``: ``None``: as the runs know them. ``effective_batch``: samples of an optimizer step;
    ``None``: any. ``gpu``: name of the GPU to train on; empty: any.
    """

    samples: int | None = None
    epochs: float = 1.0
    tokens: int | None = None
    effective_batch: int | None = None
    usd_per_gpu_hour: float | None = None
    memory_gib: float | None = None
    gpu: str = ""


@dataclass(frozen=True)
class WholeTraining(TrainingGoal):
    """A training whose samples and length are known."""

    samples: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Projection:
    """One run's configuration applied to the whole training. ``usd`` and ``headroom_bytes`` are ``None`` if unknown;
    ``basis``: how ``seconds`` and ``usd`` are known."""

    run: RunView
    label: str
    micro: int
    accumulation: int
    effective_batch: int
    seconds: float
    basis: Basis
    usd: float | None
    hardware: Hardware
    headroom_bytes: float | None
    cautions: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """Projections of a training: fastest first, then those whose time is only a lower bound, most free memory first.

    ``excluded``: runs that cannot do the training, with the reason. ``best`` and ``cheapest`` have no cautions if any
    projection has none; ``cheapest`` is none of a lower bound.
    """

    training: WholeTraining
    projections: tuple[Projection, ...]
    excluded: tuple[tuple[str, str], ...]
    best: Projection
    cheapest: Projection | None
    next: tuple[str, ...]  # points to measure next, a sentence each


def advise(runs: Sequence[RunView], wanted: TrainingGoal) -> Advice:
    """Rank the runs at the training's sequence length. Raises :class:`MemlabError`, with the reasons, if none fits, or
    if the runs do not know how long the training is."""
    training = _completed(wanted, runs)
    here = [run for run in runs if value_at(run.config, "seq_len.tokens") == training.tokens]
    if not here:
        lengths = sorted({value_at(run.config, "seq_len.tokens") for run in runs})
        near = _listed(sorted(lengths, key=lambda length: abs(length - training.tokens))[:5])
        raise MemlabError(
            f"No run has a sequence length of {training.tokens:,} tokens; the nearest have {near or 'none'}. Measure "
            f"{training.tokens:,} tokens, or give one of these lengths as --seq-len."
        )
    found = [
        (run, _projection(run, label, training, members))
        for label, members in configurations(here).items()
        for run in members
    ]
    projections = sorted((each for _, each in found if isinstance(each, Projection)), key=_rank)
    excluded = [(run.run_id, why) for run, why in found if isinstance(why, str)]
    if not projections:
        why = "; ".join(dict.fromkeys(reason for _, reason in excluded))
        raise MemlabError(f"None of the {len(here)} runs at {training.tokens:,} tokens can do this training: {why}.")
    sound = [projection for projection in projections if not projection.cautions] or projections
    priced = [(each.usd, each) for each in sound if each.usd is not None and comparable(each.basis)]
    return Advice(
        training=training,
        projections=tuple(projections),
        excluded=tuple(excluded),
        best=sound[0],
        cheapest=min(priced, key=itemgetter(0))[1] if priced else None,
        next=tuple(_measure_next(sound[0], runs)),
    )


def _rank(projection: Projection) -> tuple[bool, float]:
    return (False, projection.seconds) if comparable(projection.basis) else (True, -(projection.headroom_bytes or 0))


def _completed(training: TrainingGoal, runs: Sequence[RunView]) -> WholeTraining:
    """Add the samples and the length that the runs know, where the training lacks them."""
    lengths = sorted({value_at(run.config, "seq_len.tokens") for run in runs})
    if training.tokens is None and len(lengths) > 1:
        raise MemlabError(f"The runs have several lengths ({_listed(lengths)} tokens): choose one with --seq-len.")
    found = {known for run in runs if (known := _samples_of(run)) is not None}
    if training.samples is None and len(found) != 1:
        several = f"The runs have training sets of several sizes ({_listed(sorted(found))} samples)"
        why = several if found else "The runs do not say how many samples the training set has"
        raise MemlabError(f"{why}: give the number as --samples NUMBER.")
    whole = {"samples": training.samples or found.pop(), "tokens": training.tokens or lengths[0]}
    return WholeTraining(**{**vars(training), **whole})


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def _samples_of(run: RunView) -> int | None:
    """Return the samples of a command's training, from its steps and the mean samples of a step."""
    rate, seconds = (run.summary.get(key) for key in ("samples_per_second", "step_seconds_mean"))
    return round(run.training_steps * rate * seconds) if run.training_steps and rate and seconds else None


def _projection(run: RunView, label: str, training: WholeTraining, members: Iterable[RunView]) -> Projection | str:
    """Return the projection, or the reason why the run cannot do the training."""
    if not run.fits_and_lasts:
        return why_not(run)
    gpu = value_at(run.config, "hardware.gpu") or "an unknown GPU"
    if training.gpu.lower() not in gpu.lower():
        return f"is of {gpu}, not {training.gpu}"
    if not run.summary.get("samples_per_second"):
        return "its speed is unknown"
    micro, hardware = value_at(run.config, "batch.micro"), _hardware(run, training)
    gpus, price = hardware.world_size, hardware.total_usd_per_hour
    accumulation = value_at(run.config, "batch.accumulation") or 1
    if training.effective_batch is not None:
        if training.effective_batch % (micro * gpus):
            return (
                f"an effective batch of {training.effective_batch} is not a multiple of its micro batch x GPUs "
                f"({micro * gpus})"
            )
        accumulation = training.effective_batch // (micro * gpus)
    memory = training.memory_gib or hardware.memory_gib
    taken = taken_bytes(run)
    headroom = None if memory is None or taken is None else memory * GIB - taken
    if headroom is not None and headroom < 0:
        return f"does not fit in {memory:g} GiB"
    seconds = training.samples * training.epochs / run.summary["samples_per_second"]
    return Projection(
        run=run,
        label=label,
        micro=micro,
        accumulation=accumulation,
        effective_batch=micro * gpus * accumulation,
        seconds=seconds,
        basis=run.basis,
        usd=None if price is None else seconds / 3600 * price,
        hardware=hardware,
        headroom_bytes=headroom,
        cautions=tuple(_cautions(run, headroom, memory, members)),
    )


def _hardware(run: RunView, training: TrainingGoal) -> Hardware:
    """Return the hardware of a run, with the price that is given, or else its own."""
    known = {key: value for key, value in run.config["hardware"].items() if value != MISSING}
    price = training.usd_per_gpu_hour
    return Hardware(**known if price is None else {**known, "usd_per_gpu_hour": price})


def _cautions(run: RunView, headroom: float | None, memory: float | None, members: Iterable[RunView]) -> Iterator[str]:
    rate = run.summary["samples_per_second"]
    smaller = [
        other.summary["samples_per_second"]
        for other in members
        if other.status == "ok" and point_of(other) < point_of(run) and other.summary.get("samples_per_second")
        if comparable(run.basis, other.basis)
    ]
    lost = 1 - rate / max(smaller, default=rate)
    if lost > THRASH:
        yield f"thrashes: {100 * lost:.0f} % fewer samples/s than a smaller batch"
    if retries := run.summary.get("num_alloc_retries"):
        yield f"thrashes: the allocator had to retry {retries} times"
    if headroom is not None and memory is not None and headroom < TIGHT * memory * GIB:
        yield f"tight: {100 * headroom / (memory * GIB):.1f} % of the memory is free"
    yield from run.incomplete


def _measure_next(best: Projection, runs: Iterable[RunView]) -> Iterator[str]:
    """Suggest a larger micro batch to measure, if the best projection's is the largest tried or a gap follows it."""
    length = value_at(best.run.config, "seq_len.tokens")
    here = [run for run in runs if point_of(run)[1] == length]
    same = {point_of(run)[0] for members in families(here) if best.run in members for run in members}
    beyond = min((micro for micro in same if micro > best.micro), default=None)
    step = best.micro - max((micro for micro in same if micro < best.micro), default=best.micro - 1)
    if beyond is None:
        yield (
            f"batch.micro={best.micro + step}: {best.micro} is the largest batch tried with this configuration, and a "
            "larger one may be faster."
        )
    elif (gap := beyond - best.micro) > 1:
        yield f"batch.micro={best.micro + ceil(gap / 2)}: nothing was tried between {best.micro} and {beyond}."


def how_to_train(projection: Projection) -> tuple[list[str], dict[str, Any]]:
    """Return the command of the projection, and its DeepSpeed JSON, with the accumulation that the training needs.

    The command is group options, then values that differ from these options, quoted for a shell. A command of the
    user's own, and its JSON, are those that were measured or predicted.
    """
    run, config = projection.run, projection.run.config
    if is_command(run):
        return [config["training"]["command"]], used_deepspeed_json(run)
    advised = {**config, "batch": {**config["batch"], "accumulation": projection.accumulation}}
    words = ["python", "launch.py", *overrides_of(run.choices, advised)]
    return words, deepspeed_config(from_dict(with_own_apart(advised)))
