"""Summary of a run from the figures of its ranks, the same for measured and predicted runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from memlab.core.config import Config
from memlab.core.noise import doubts, spread

BYTES = (
    "peak_allocated_bytes",
    "peak_active_bytes",
    "peak_reserved_bytes",
    "device_used_bytes",
    "process_used_bytes",
    "host_peak_bytes",
    "host_pinned_bytes",
)
"""Memory figures of a rank, in bytes. The largest over the ranks decides whether a run fits; they are never summed."""


@dataclass(frozen=True)
class Work:
    """Samples and tokens of the measured steps, over all ranks: their means over the steps. ``None``: not known."""

    samples: float | None
    tokens: float | None


def summarise(
    config: Config, ranks: Sequence[dict[str, Any]], total_s: float | None, work: Work | None = None
) -> dict[str, Any]:
    """Compute the figures of a run from the dictionaries of its ranks. Figures that no rank has are left out.

    ``total_s``: wall-clock seconds of the whole run, including start-up; they give the price of the run. ``work``: for
    steps of different sizes; by default every step has the batch and the length of the configuration.
    """
    summary: dict[str, Any] = {}
    for key in (*BYTES, "num_alloc_retries", "num_ooms"):
        if values := [rank[key] for rank in ranks if rank.get(key) is not None]:
            largest = max(values)
            summary[key] = {"max": largest, "mean": mean(values), "min": min(values)} if key in BYTES else largest
    summary |= _known(ranks, "parameters", "trainable_parameters", "model_flops_per_step")
    if losses := _first(ranks, "losses"):
        summary |= {"first_loss": losses[0], "last_loss": losses[-1]}
    summary |= _known(ranks, "skipped_steps")
    if (seconds := slowest(ranks, "step_seconds")) and min(seconds) > 0:
        summary |= _speed(config, ranks, seconds, work)
    if total_s is not None and config.hardware.total_usd_per_hour is not None:
        summary["usd"] = total_s / 3600 * config.hardware.total_usd_per_hour
    return summary


def fields_of_ranks(
    config: Config, ranks: Sequence[dict[str, Any]], total_s: float, work: Work | None = None
) -> dict[str, Any]:
    """Return the fields of a measured record that follow from the files of its ranks. Arguments as in
    :func:`summarise`."""
    names = dict.fromkeys(name for rank in ranks for name in rank["timing"])
    seconds, warmup = slowest(ranks, "step_seconds"), slowest(ranks, "warmup_seconds")
    return {
        "ranks": [{key: value for key, value in rank.items() if key != "runtime"} for rank in ranks],
        "steps": {
            "warmup": len(warmup),
            "measured": len(seconds),
            "repeat": config.measure.repeat,
            "seconds": seconds,
            "warmup_seconds": warmup,
            "doubts": doubts(seconds),
        },
        "summary": summarise(config, ranks, total_s, work),
        "timing": {name: max(rank["timing"].get(name, 0.0) for rank in ranks) for name in names} | {"total_s": total_s},
    }


def slowest(ranks: Sequence[dict[str, Any]], key: str) -> list[float]:
    """Return the seconds of the slowest rank for each step: the other ranks wait for it."""
    return [max(step) for step in zip(*(rank[key] for rank in ranks if rank.get(key)), strict=False)]


def _speed(config: Config, ranks: Sequence[dict[str, Any]], seconds: list[float], work: Work | None) -> dict[str, Any]:
    """Compute rates from the median step, so that one disturbed step does not change them.

    Steps of different sizes have no usual step: their rates are over all of them.
    """
    step = median(seconds)
    world_size = config.hardware.world_size
    if work is None:
        samples = config.batch.micro * config.batch.accumulation * world_size
        work, usual = Work(samples, samples * config.seq_len.tokens), step
    else:
        usual = mean(seconds)
    tokens_per_second = None if work.tokens is None else work.tokens / usual
    speed = {
        "step_seconds": step,
        "step_seconds_mean": mean(seconds),
        "step_seconds_min": min(seconds),
        "step_seconds_max": max(seconds),
        "step_seconds_spread": spread(seconds),
        "iterations_per_second": 1 / step,
        "samples_per_second": None if work.samples is None else work.samples / usual,
        "tokens_per_second": tokens_per_second,
        "tokens_per_second_per_gpu": None if tokens_per_second is None else tokens_per_second / world_size,
    }
    if flops := _first(ranks, "model_flops_per_step"):
        speed["model_flops_per_second_per_gpu"] = flops / step
        if peak := peak_flops(config):
            speed["model_flops_utilization"] = flops / step / peak
    if config.hardware.total_usd_per_hour is not None and work.tokens:
        speed["usd_per_million_tokens"] = config.hardware.total_usd_per_hour / 3600 * usual / work.tokens * 1e6
    energies = [rank["energy_joules"] for rank in ranks if rank.get("energy_joules")]
    if len(energies) == len(ranks) and work.tokens:
        speed["joules_per_token"] = sum(energies) / (work.tokens * len(seconds))
    return speed


def peak_flops(config: Config) -> float | None:
    """Return the dense peak of one GPU in FLOP/s for the run's precision; ``None`` if it is not known."""
    hardware = config.hardware
    tflops = hardware.fp32_tflops if config.precision.dtype == "fp32" else hardware.bf16_tflops
    return tflops * 1e12 if tflops else None


def _known(ranks: Sequence[dict[str, Any]], *keys: str) -> dict[str, Any]:
    """Return these figures, which are the same for all ranks, without those that no rank has."""
    return {key: value for key in keys if (value := _first(ranks, key)) is not None}


def _first(ranks: Sequence[dict[str, Any]], key: str) -> Any:
    """Return a figure that is the same for all ranks from the first rank that has it."""
    return next((rank[key] for rank in ranks if rank.get(key) not in (None, [])), None)
