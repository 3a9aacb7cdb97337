"""Probability that a predicted point fits, from the errors of earlier predictions."""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from memlab.core.config import Config
from memlab.core.config_values import library_values
from memlab.simulator import allocator

RATIOS = Path(__file__).parent / "ratios.json"
"""File with two tables. ``ratios``: ``measured / predicted`` reserved memory of every record of results/ that ran, by
engine configuration; ``kinds``: GPU -> kind of configuration -> number of engine configurations of that kind.
``make accuracy`` writes the file and publishes the same errors."""

STEP = 0.005
"""Ratios are rounded up to multiples of this, so that few distinct ratios need a replay."""

FEW = 5
"""Number of measured configurations of a kind below which they do not predict the error of the next one."""

USUAL = ("none", "sdpa", "bf16", "AdamW", "default", "steps", "memlab")
"""Usual values, which the name of a kind leaves out."""


def kind(config: Config) -> str:
    """Name the kind of a configuration: one or several GPUs, and every option that is not :data:`USUAL`.

    The kind determines which parts of torch, DeepSpeed and the driver a run uses. Runs of one kind differ in model,
    shape, ZeRO stage and checkpointing.
    """
    hardware, offload = config.hardware, config.offload
    count = "one GPU" if hardware.world_size == 1 else "several GPUs" if hardware.nodes == 1 else "several nodes"
    parts = {
        "optimizer on": offload.optimizer,
        "parameters on": offload.param,
        "adapter": config.adapter.method,
        "kernels": config.kernels.implementation,
        "attention": config.attention.implementation,
        "precision": config.precision.dtype,
        "optimizer": config.optimizer.name,
        "allocator": _allocator_kind(config.allocator.conf),
        "protocol": config.measure.protocol,
        "training": config.training.loop,
        "with": " ".join(f"{key}={value}" for key, value in library_values(config).items()) or "none",
    }
    return ", ".join([count, *(f"{name} {word}" for name, word in parts.items() if word not in USUAL)])


def _allocator_kind(conf: str) -> str:
    """Name the allocator's options for a kind. The share of the device is left out: with a smaller share the allocator
    works as on a smaller device."""
    named = {allocator.Options(): "default", allocator.Options(expandable_segments=True): "expandable"}
    return named.get(replace(allocator.parse(conf), memory_fraction=1.0), conf)


def support(config: Config) -> tuple[int, int]:
    """Return how many of the shipped errors' configurations have this GPU, and how many of these this kind, too."""
    of_gpu = _shipped()["kinds"].get(config.hardware.gpu, {})
    return sum(of_gpu.values()), of_gpu.get(kind(config), 0)


def shipped_ratios() -> dict[str, list[float]]:
    return _shipped()["ratios"]


@cache
def _shipped() -> dict[str, Any]:
    return json.loads(RATIOS.read_text(encoding="utf-8"))


def probability(fits: Callable[[float], bool], ratios: Mapping[str, Sequence[float]]) -> tuple[float, int]:
    """Return the probability that a predicted point fits, and the number of engine configurations it is based on.

    ``fits(ratio)``: whether the point fits if it needs ``ratio`` times the predicted memory; a point that fits at a
    ratio fits at every smaller one. The points of one configuration share their error, so each configuration counts
    once. One success and one failure are added (Laplace), so the probability is never 0 or 1.
    """
    distinct = sorted({_rounded(ratio) for values in ratios.values() for ratio in values})
    fitting = bisect_left(distinct, True, key=lambda ratio: not fits(ratio))
    limit = distinct[fitting - 1] if fitting else 0.0
    shares = [sum(_rounded(ratio) <= limit for ratio in values) / len(values) for values in ratios.values()]
    return (sum(shares) + 1) / (len(shares) + 2), len(shares)


def _rounded(ratio: float) -> float:
    return round(-(-round(ratio, 6) // STEP) * STEP, 6)
