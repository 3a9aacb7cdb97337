"""GPUs of a process that uses several: a record has an entry for each, as if they were ranks, measured or predicted."""

from collections.abc import Mapping, Sequence
from typing import Any

from memlab.core.sizes import OTHER_GPU_BYTES

_OF_OTHERS = ("device", "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")
"""What a process notes of its GPUs beside its own."""

_NOT_SEEN = dict.fromkeys(("peak_active_bytes", "num_alloc_retries", "num_ooms", "oom", "host_probe"))
"""Figures that a process has of its own device alone."""


def others_that_count(rank: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the other devices of a measured process. Ranks of several have one GPU each."""
    facts = rank["attached"]
    others = facts.get("other_devices") or [] if facts.get("world_size") == 1 else []
    return [each for each in others if each["peak_allocated_bytes"] >= OTHER_GPU_BYTES]


def on_each_gpu(rank: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an entry for each GPU of a process, in the order of their indices: as ranks 0, 1, ... of as many.

    ``rank``: the file of the process. ``others``: ``device`` and known figures of its GPUs beside its own.
    """
    if not others:
        return [dict(rank)]
    facts = rank["attached"]
    of_others = {**rank, **_NOT_SEEN, "phases": {}, "attached": {**facts, "phases": {}, "peak": None, "growth": None}}
    entries = [rank, *({**of_others, **{key: other.get(key) for key in _OF_OTHERS}} for other in others)]
    entries.sort(key=lambda entry: (len(entry["device"]), entry["device"]))  # cuda:2 before cuda:10
    gpus = len(entries)
    shared = {"world_size": gpus, "local_world_size": gpus, "other_devices": [], "is_gpu_of_process": True}
    return [
        {**entry, "rank": number, "attached": {**entry["attached"], **shared, "rank": number, "local_rank": number}}
        for number, entry in enumerate(entries)
    ]
