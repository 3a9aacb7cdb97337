"""Remedies for a predicted run that does not fit: the most that each change can take off the peak.

The savings are computed from the breakdown of the fullest rank at its peak: ZeRO shards a kind of memory over the
ranks, offloading takes it off the device. They are upper limits, because another moment may then be the peak, and the
memory that a change adds (buffers, gathered weights, the inputs that checkpointing keeps) is left out.
``memlab plan --changes`` predicts the real savings.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from memlab.core.config import Config
from memlab.core.record import Record
from memlab.predict.memory.breakdown import SLACK
from memlab.predict.trace import memory_kinds

PER_SAMPLE = (memory_kinds.ACTIVATIONS, memory_kinds.ACTIVATION_GRADIENTS, memory_kinds.LOGITS)
"""Kinds of memory that grow with the micro batch."""

SHARDED_FROM = {
    1: (memory_kinds.MASTER, memory_kinds.OPTIMIZER),
    2: (memory_kinds.GRADIENTS,),
    3: (memory_kinds.WEIGHTS,),
}
"""ZeRO stage -> kinds of memory that it shards over the ranks, in addition to the stages below."""


@dataclass(frozen=True)
class Remedy:
    """A change that lowers the peak. ``change``: a word of the command line; ``nbytes``: the most that it takes off the
    peak; ``kinds``: the kinds of memory that it reduces."""

    change: str
    nbytes: int
    kinds: tuple[str, ...]


def remedies(record: Record) -> list[Remedy]:
    """Return the remedies that a record's configuration does not use yet, the largest saving first. Empty if no rank
    has a breakdown."""
    broken_down = [rank for rank in record.ranks if (rank.get("breakdown") or {}).get("phases")]
    if not broken_down:
        return []
    fullest = max(broken_down, key=lambda rank: rank["peak_reserved_bytes"] or 0)
    phases, peak = fullest["breakdown"]["phases"], fullest["breakdown"]["peak_phase"]
    if peak not in phases:
        return []
    found = [
        Remedy(change, int(share * sum(phases[peak].get(kind, 0) for kind in of)), of)
        for change, share, of in _changes(record.config, len(record.ranks))
    ]
    return sorted((remedy for remedy in found if remedy.nbytes > 0), key=lambda remedy: -remedy.nbytes)


def _changes(config: Config, ranks: int) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    """Yield each possible change, the share of memory that it takes off, and the kinds of memory concerned."""
    stage, micro, offload = config.zero_stage.stage, config.batch.micro, config.offload
    if not config.checkpointing.enabled:
        yield "checkpointing=full", 1.0, (memory_kinds.ACTIVATIONS,)
    if micro > 1:
        yield f"batch.micro={micro // 2}", 1 - (micro // 2) / micro, PER_SAMPLE
    if stage < 3:
        yield f"zero_stage=zero{stage + 1}", 1 - 1 / ranks, SHARDED_FROM[stage + 1]
    if stage > 0 and offload.optimizer == "none":
        yield "offload=optimizer", 1.0, (memory_kinds.MASTER, memory_kinds.OPTIMIZER)
    if stage == 3 and offload.param == "none":
        states = (memory_kinds.MASTER, memory_kinds.OPTIMIZER) if offload.optimizer == "none" else ()
        yield "offload=all", 1.0, (memory_kinds.WEIGHTS, *states)
    if "expandable_segments:True" not in config.allocator.conf:
        yield "allocator=expandable", 1.0, (SLACK,)
