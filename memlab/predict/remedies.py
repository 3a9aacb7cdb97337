"""What to change first when a predicted run does not fit: what each change takes off the peak, at most.

Arithmetic on the breakdown of the fullest rank at its peak: ZeRO shards a kind over the ranks, offloading takes it off
the device. It is at most that much, because another moment may then be the peak, and what a change adds (buffers,
gathered weights, the inputs that checkpointing keeps) is left out; ``memlab plan --changes`` predicts it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from memlab.config import Config, from_dict
from memlab.predict.breakdown import SLACK
from memlab.predict.shadow import kinds
from memlab.record import Record

PER_SAMPLE = (kinds.ACTIVATIONS, kinds.ACTIVATION_GRADIENTS, kinds.LOGITS)
"""What grows with the micro batch."""

SHARDED_FROM = {1: (kinds.MASTER, kinds.OPTIMIZER), 2: (kinds.GRADIENTS,), 3: (kinds.WEIGHTS,)}
"""ZeRO stage -> what each rank then holds only its share of."""


@dataclass(frozen=True)
class Remedy:
    """``change``: a word of the command line. ``nbytes``: what it takes off the peak at most; ``kinds``: of what."""

    change: str
    nbytes: int
    kinds: tuple[str, ...]


def remedies(record: Record) -> list[Remedy]:
    """The changes that are left to this configuration, those that take off the most first. Empty where a rank's
    breakdown is not known."""
    broken_down = [rank for rank in record.ranks if (rank.get("breakdown") or {}).get("phases")]
    if not broken_down:
        return []
    fullest = max(broken_down, key=lambda rank: rank["peak_reserved_bytes"] or 0)
    phases, peak = fullest["breakdown"]["phases"], fullest["breakdown"]["peak_phase"]
    if peak not in phases:
        return []
    found = [
        Remedy(change, int(share * sum(phases[peak].get(kind, 0) for kind in of)), of)
        for change, share, of in _changes(from_dict(record.config), len(record.ranks))
    ]
    return sorted((remedy for remedy in found if remedy.nbytes > 0), key=lambda remedy: -remedy.nbytes)


def _changes(config: Config, ranks: int) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    """Change, the share that it takes off, and of which kinds."""
    stage, micro, offload = config.zero_stage.stage, config.batch.micro, config.offload
    if not config.checkpointing.enabled:
        yield "checkpointing=full", 1.0, (kinds.ACTIVATIONS,)
    if micro > 1:
        yield f"batch.micro={micro // 2}", 1 - (micro // 2) / micro, PER_SAMPLE
    if stage < 3:
        yield f"zero_stage=zero{stage + 1}", 1 - 1 / ranks, SHARDED_FROM[stage + 1]
    if stage > 0 and offload.optimizer == "none":
        yield "offload=optimizer", 1.0, (kinds.MASTER, kinds.OPTIMIZER)
    if stage == 3 and offload.param == "none":
        states = (kinds.MASTER, kinds.OPTIMIZER) if offload.optimizer == "none" else ()
        yield "offload=all", 1.0, (kinds.WEIGHTS, *states)
    if "expandable_segments:True" not in config.allocator.conf:
        yield "allocator=expandable", 1.0, (SLACK,)
