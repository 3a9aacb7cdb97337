"""Labels for what a command uses and no option describes.

torch's autocast is not the bf16 of DeepSpeed, and a command without DeepSpeed has no ZeRO stage, not stage 0. Such
groups stay without values in the configuration. They are known all the same, from the facts that the ranks found.
"""

from collections.abc import Mapping
from typing import Any

from memlab.core.record import Record, trained_model

SHARDS = ("FSDP", "FullyShardedDataParallel")
"""Beginnings of the names of wrappers that can offload by themselves (torch's ``CPUOffload``, ``CPUOffloadPolicy``)."""


def other_words(record: Record) -> dict[str, str]:
    """Return group of ``record.unknown_config`` -> what the command used, in a few words; empty without any."""
    facts: dict[str, Any] = next((rank["attached"] for rank in record.ranks if rank["attached"]), {})
    words = {"data": ", ".join(file["name"] for file in facts.get("datasets") or ())}
    if facts and not facts.get("deepspeed"):
        words |= _without_deepspeed(facts)
    return {group: told for group, told in words.items() if told and group in record.unknown_config}


def _without_deepspeed(facts: Mapping[str, Any]) -> dict[str, str]:
    model = trained_model(facts)
    wrappers: list[str] = model.get("wrappers") or []
    words = {"zero_stage": ", ".join(["no DeepSpeed", *wrappers]), "precision": _precision(model, facts)}
    if not any(name.startswith(SHARDS) for name in wrappers):
        words["offload"] = "no DeepSpeed"
    return words


def _precision(model: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Write the parameters' types and accelerate's mixed precision, which transformers' Trainer uses too.

    What a plain loop casts by ``torch.autocast`` is not found out.
    """
    mixed = (facts.get("accelerate") or {}).get("mixed_precision")
    casts = {None: "perhaps torch.autocast", "no": "no mixed precision"}.get(mixed, f"mixed precision {mixed}")
    types = " and ".join(model.get("dtypes") or ())
    return f"{types} parameters, {casts}" if types else ""
