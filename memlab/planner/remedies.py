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
from memlab.planner import reach
from memlab.planner.reach import Reach


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
    held = phases[peak]
    found = [
        Remedy(change, reach.at_most(takes, held), tuple(takes))
        for change, takes in _changes(record.config, len(record.ranks))
    ]
    return sorted((remedy for remedy in found if remedy.nbytes > 0), key=lambda remedy: -remedy.nbytes)


def _changes(config: Config, ranks: int) -> Iterator[tuple[str, Reach]]:
    """Yield each possible change, and what it can take off."""
    stage, micro, offload = config.zero_stage.stage, config.batch.micro, config.offload
    if not config.checkpointing.enabled:
        yield "checkpointing=full", reach.CHECKPOINTED
    if micro > 1:
        yield f"batch.micro={micro // 2}", reach.smaller_batch(micro, micro // 2)
    if stage < 3:
        yield f"zero_stage=zero{stage + 1}", reach.sharded(stage, stage + 1, ranks)
    if stage > 0 and offload.optimizer == "none":
        yield "offload=optimizer", reach.OPTIMIZER_OFFLOADED
    if stage == 3 and offload.param == "none":
        states = reach.OPTIMIZER_OFFLOADED if offload.optimizer == "none" else {}
        yield "offload=all", {**reach.WEIGHTS_OFFLOADED, **states}
    if "expandable_segments:True" not in config.allocator.conf:
        yield "allocator=expandable", reach.DEFRAGMENTED
