"""How likely it is that something fits, from the errors of earlier predictions."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from memlab.config import Config
from memlab.plan import engine_key
from memlab.predict import allocator

RATIOS = Path(__file__).parent / "ratios.json"
"""``ratios``: ``measured / predicted`` reserved memory of every record of results/ that ran, by engine configuration;
``kinds``: GPU -> kind of configuration -> how many of these engine configurations are of that kind. Written by
``make accuracy``, which also publishes the same errors."""

STEP = 0.005
"""Ratios are rounded up to multiples of this: a replay more for every distinct one is not worth their digits."""

FEW = 5
"""Fewer measured configurations of a kind say nothing of the next one's error."""

USUAL = ("none", "sdpa", "bf16", "AdamW", "default", "steps")
"""What a kind does not mention."""


@dataclass(frozen=True)
class Support:
    """How many of the engine configurations that errors are known of have the GPU of a plan, and are of its kind."""

    same_gpu: int
    same_kind: int


def kind(config: Config) -> str:
    """What decides which parts of torch, DeepSpeed and the driver a run uses: one or several GPUs, and in words what
    is not :data:`USUAL`.

    Runs of one kind differ in model, shape, ZeRO stage and checkpointing.
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
    }
    return ", ".join([count, *(f"{name} {word}" for name, word in parts.items() if word not in USUAL)])


def _allocator_kind(conf: str) -> str:
    """A smaller share of the device is no other kind: the allocator works as it does on a smaller device."""
    options = replace(allocator.parse(conf), memory_fraction=1.0)
    named = {allocator.Options(): "default", allocator.Options(expandable_segments=True): "expandable"}
    return named.get(options, conf)


def kinds(measured: Iterable[Config]) -> dict[str, dict[str, int]]:
    """GPU -> kind -> number of engine configurations among ``measured``."""
    engines = {engine_key(config): (config.hardware.gpu, kind(config)) for config in measured}
    found: dict[str, dict[str, int]] = {}
    for (gpu, name), count in sorted(Counter(engines.values()).items()):
        found.setdefault(gpu, {})[name] = count
    return found


def support(config: Config) -> Support:
    """What the shipped errors know of this GPU and this kind of configuration."""
    of_gpu = _shipped()["kinds"].get(config.hardware.gpu, {})
    return Support(sum(of_gpu.values()), of_gpu.get(kind(config), 0))


def shipped_ratios() -> dict[str, list[float]]:
    return _shipped()["ratios"]


@cache
def _shipped() -> dict[str, Any]:
    return json.loads(RATIOS.read_text(encoding="utf-8"))


def probability(fits: Callable[[float], bool], ratios: Mapping[str, Sequence[float]]) -> tuple[float, int]:
    """The probability that a prediction's point fits, and on how many engine configurations it rests.

    ``fits`` says whether it would if ``ratio`` times as much were needed as predicted; what fits at a ratio fits at
    every smaller one. The points of one configuration share their error, so each configuration counts as one, and with
    one success and one failure added (Laplace) nothing is ever certain.
    """
    distinct = sorted({_rounded(ratio) for values in ratios.values() for ratio in values})
    low, high = 0, len(distinct)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(distinct[middle]) else (low, middle)
    limit = distinct[low - 1] if low else 0.0
    shares = [sum(_rounded(ratio) <= limit for ratio in values) / len(values) for values in ratios.values()]
    return (sum(shares) + 1) / (len(shares) + 2), len(shares)


def _rounded(ratio: float) -> float:
    return round(-(-round(ratio, 6) // STEP) * STEP, 6)
