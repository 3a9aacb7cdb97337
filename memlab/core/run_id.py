"""Name of a run's folder, and keys that tell which runs are equal: from the configuration alone."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from memlab.core.config import Config, Offload, to_dict, without

NOT_MEASURED = ("name", "force", "predict", "sweep", "measure.timeout_s", "measure.repeats", "hardware.hostfile")
"""Keys that do not change what is measured, so they are left out of the hash of a run."""

SHAPE = ("seq_len.tokens", "batch.micro")
"""Keys that may differ between the points of one launch: they change the data, not the engine."""

LATER_GROUPS = {"adapter": "none", "kernels": "none", "training": "memlab"}
"""Groups that older records lack -> the option that they stand for, whose values are the group's defaults. Defaults are
left out of the hash, so the names of older run folders stay valid."""

LATER_KEYS = {"measure.protocol": "steps", "measure.profile": False, "measure.snapshot_ranks": []}
"""Single keys that older records lack -> their defaults, which are also left out of the hash."""

UNREMARKABLE = frozenset({"none", "default", "bf16", "sdpa", "AdamW", "random", "memlab"})
"""Common values, which are left out of the names of run folders."""


def run_id(config: Config, unknown: Collection[str] = ()) -> str:
    """Name the run folder: ``<main settings>-<hash of the resolved configuration>``.

    Only values count: an option, and the same values typed one by one, give the same name and so the same run folder.
    ``unknown``: groups and dotted keys that are not known; the name leaves them out.
    """
    return f"{_slug(config, unknown)}-{config_hash(config, unknown)}"


def config_hash(config: Config, unknown: Collection[str] = ()) -> str:
    """Hash everything that can change what is measured; eight hexadecimal digits. ``unknown`` as in :func:`run_id`."""
    return _hash_without(config, (*NOT_MEASURED, *unknown))


def shape_of(config: Config) -> tuple[int, int]:
    """Return (micro batch, tokens), which may differ between the points of one launch."""
    return config.batch.micro, config.seq_len.tokens


def engine_key(config: Config) -> str:
    """Return a key that is equal for configurations that can be measured in one launch."""
    return _hash_without(config, NOT_MEASURED + SHAPE)


def memory_key(config: Config) -> str:
    """Return a key that is equal for configurations that need the same memory at the same shape."""
    return _hash_without(config, (*NOT_MEASURED, *SHAPE, "measure.repeat"))


def subject_key(config: Config) -> str:
    """Return a key that is equal for repeats of the same experiment."""
    return _hash_without(config, (*NOT_MEASURED, "measure.repeat"))


def _hash_without(config: Config, keys: Iterable[str]) -> str:
    values = to_dict(config)
    later = [group for group in LATER_GROUPS if getattr(config, group) == getattr(Config(), group)]
    later += [key for key, absent in LATER_KEYS.items() if _value(values, key) == absent]
    identity = without(values, [*keys, *later])
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def _slug(config: Config, unknown: Collection[str]) -> str:
    offload, batch, adapter, hardware = config.offload, config.batch, config.adapter, config.hardware
    parts = {
        "model.path": config.model.path.rstrip("/").split("/")[-1],
        "training.loop": config.training.loop,
        "zero_stage.stage": f"zero{config.zero_stage.stage}",
        "offload.optimizer": _offload_word(offload),
        "allocator.conf": _allocator_word(config.allocator.conf),
        "checkpointing.enabled": "checkpointing" if config.checkpointing.enabled else "none",
        "seq_len.tokens": f"s{config.seq_len.tokens}",
        "batch.micro": f"b{batch.micro}",
        "batch.accumulation": f"x{batch.accumulation}" if batch.accumulation > 1 else "none",
        "precision.dtype": config.precision.dtype,
        "attention.implementation": config.attention.implementation,
        "optimizer.name": config.optimizer.name,
        "adapter.method": f"{adapter.method}{adapter.rank}" if adapter.method != "none" else "none",
        "kernels.implementation": config.kernels.implementation,
        "data.source": config.data.source,
        "hardware.nodes": f"{hardware.nodes}nodes" if hardware.nodes > 1 else "none",
        "hardware.gpus": f"{hardware.gpus}x{hardware.gpu.removeprefix('NVIDIA ') or hardware.device}",
        "measure.repeat": f"r{config.measure.repeat}" if config.measure.repeat > 1 else "none",
        "mode": "predicted" if config.mode == "predict" else "none",
    }
    known = [part for key, part in parts.items() if not {key, key.partition(".")[0]} & set(unknown)]
    words = [re.sub(r"[^A-Za-z0-9_.]+", "_", part) for part in known if part not in UNREMARKABLE]
    return "-".join(words)[:150]


def _offload_word(offload: Offload) -> str:
    """Name the offload like the option of the group, if there is one: none, optimizer, param_nvme, all, ..."""
    places = {"optimizer": offload.optimizer, "param": offload.param}
    if offload.optimizer == offload.param != "none":
        places = {"all": offload.optimizer}
    words = [name if place == "cpu" else f"{name}_{place}" for name, place in places.items() if place != "none"]
    return "_and_".join(words) or "none"


def _allocator_word(conf: str) -> str:
    if not conf:
        return "default"
    return "expandable" if conf == "expandable_segments:True" else "allocator"


def _value(values: dict[str, Any], dotted: str) -> Any:
    for key in dotted.split("."):
        values = values[key]
    return values
