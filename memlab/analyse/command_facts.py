"""What a command's record knows beyond its configuration: how long its training is, and labels for what it uses and no
option describes.

torch's autocast is not the bf16 of DeepSpeed, and a command without DeepSpeed has no ZeRO stage, not stage 0. Such
groups stay without values in the configuration. They are known all the same, from the facts that the ranks found.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memlab.core.record import Record, arguments_of, trained_model


class Extent(NamedTuple):
    """A part of the training whose number of steps is known: ``name`` is empty for a whole run."""

    name: str
    steps: int


def extent(record: Record) -> Extent | None:
    """Return the whole run where its end is known, else the epoch that a prediction read; ``None``: not known."""
    if end := record.command.get("growth", {}).get("end_step"):
        return Extent("", end)
    facts: Mapping[str, Any] = next((rank["attached"] for rank in record.ranks if rank["attached"]), {})
    arguments = arguments_of(facts)
    if (arguments.get("max_steps") or 0) > 0:
        return Extent("", arguments["max_steps"])
    read = epochs_over_ranks(record.command.get("epochs", ()))
    epoch = next((one for one in read if one["purpose"] == "training"), None)
    if epoch is None or not epoch["batches"]:
        return None
    ranks = epoch.get("ranks", 1) if epoch.get("is_shared") else 1
    steps = max(1, epoch["batches"] // (ranks * epoch["batches_per_step"]))
    epochs = arguments.get("num_train_epochs") or 1
    return Extent("one epoch" if epochs == 1 else f"{epochs:g} epochs", round(epochs * steps))


def epochs_over_ranks(epochs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Join what the traced ranks read, with the largest batches of all of them: shares of an epoch are added up."""
    joined: dict[tuple, Mapping[str, Any]] = {}
    numbers: Counter[int] = Counter()
    for epoch in epochs:
        if epoch.get("is_shared"):
            numbers[epoch["read_by"]] += 1
            key: tuple = epoch["purpose"], numbers[epoch["read_by"]]
        else:
            key = tuple(epoch[name] for name in ("purpose", "batches", "batches_read", "failure", "is_run_whole"))
        joined[key] = _with_share(joined[key], epoch) if key in joined else epoch
    return list(joined.values())


_OF_ALL_RANKS = ("batches", "batches_read", "batches_in_reach", "ranks", "ranks_read")


def _with_share(known: Mapping[str, Any], epoch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add what another rank read of an epoch."""
    dearest = [*known["dearest"], *epoch["dearest"]]
    if not epoch.get("is_shared"):
        return {**known, "dearest": dearest, "ranks": max(known.get("ranks", 1), epoch.get("ranks", 1))}
    added = {key: None if None in (known[key], epoch[key]) else known[key] + epoch[key] for key in _OF_ALL_RANKS}
    is_whole = known["is_run_whole"] or epoch["is_run_whole"]
    seconds = max(known["seconds"], epoch["seconds"])
    return {**known, **added, "dearest": dearest, "seconds": seconds, "is_run_whole": is_whole}


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
