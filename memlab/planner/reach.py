"""What a change can take off a GPU at most: shares of kinds of memory, from the rules of ZeRO and of offloading.

These limits only choose which changes are worth a prediction: they say nothing about what a change adds, nor about
which moment is the peak then.
"""

from collections.abc import Mapping

from memlab.core.config import Config
from memlab.predict.memory.breakdown import SLACK
from memlab.predict.trace import memory_kinds as kinds

Reach = Mapping[str, float]
"""Kind of memory -> the largest share of it that a change takes off."""

PER_SAMPLE = (kinds.ACTIVATIONS, kinds.ACTIVATION_GRADIENTS, kinds.LOGITS)
"""Kinds of memory that grow with the micro batch."""

SHARDED_FROM = {1: (kinds.MASTER, kinds.OPTIMIZER), 2: (kinds.GRADIENTS,), 3: (kinds.WEIGHTS,)}
"""ZeRO stage -> kinds of memory that it shards over the ranks, in addition to the stages below."""

CHECKPOINTED: Reach = {kinds.ACTIVATIONS: 1.0}
DEFRAGMENTED: Reach = {SLACK: 1.0}
OPTIMIZER_OFFLOADED: Reach = dict.fromkeys((kinds.MASTER, kinds.OPTIMIZER, kinds.STEP), 1.0)
WEIGHTS_OFFLOADED: Reach = {kinds.WEIGHTS: 1.0}
ADAPTERS: Mapping[tuple[str, str], Reach] = {
    ("none", "lora"): dict.fromkeys((kinds.GRADIENTS, kinds.MASTER, kinds.OPTIMIZER, kinds.STEP), 1.0),
    ("lora", "qlora"): {kinds.WEIGHTS: 0.75},  # of 16 bits
}
"""Methods before and after -> reach: one step at a time, so that a training without an adapter gets one proposal."""
HALF_PRECISION: Reach = dict.fromkeys((kinds.WEIGHTS, kinds.GRADIENTS, *PER_SAMPLE), 0.5)
LOSS_FUSED: Reach = {kinds.LOGITS: 1.0}
SCORES_NOT_KEPT: Reach = dict.fromkeys((kinds.ACTIVATIONS, kinds.ACTIVATION_GRADIENTS), 1.0)


def smaller_batch(before: int, after: int) -> Reach:
    return dict.fromkeys(PER_SAMPLE, 1 - after / before)


def sharded(before: int, after: int, ranks: int) -> Reach:
    """Return the reach of a higher ZeRO stage: what this stage shards, and the stage before does not."""
    found = (kind for stage in range(before + 1, after + 1) for kind in SHARDED_FROM[stage])
    return dict.fromkeys(found, 1 - 1 / ranks)


def on_more_ranks(factor: int) -> Reach:
    """Return the reach of ``factor`` times the ranks, where the ranks share out everything that ZeRO can shard."""
    return dict.fromkeys((kind for found in SHARDED_FROM.values() for kind in found), 1 - 1 / factor)


def reach(before: Config, after: Config) -> Reach:
    """Return the reach of a change of memlab's own training."""
    old, new = before.zero_stage, after.zero_stage
    found: dict[str, float] = {}
    if after.checkpointing.enabled and not before.checkpointing.enabled:
        found |= CHECKPOINTED
    if after.batch.micro < before.batch.micro:
        found |= smaller_batch(before.batch.micro, after.batch.micro)
    if new.stage > old.stage:
        found |= sharded(old.stage, new.stage, before.hardware.world_size)
    if new.stage and new.reduce_bucket_size < old.reduce_bucket_size:
        found |= {kinds.BUCKETS: 1 - new.reduce_bucket_size / old.reduce_bucket_size}
    if after.offload.optimizer != "none" and before.offload.optimizer == "none":
        found |= OPTIMIZER_OFFLOADED
    if after.offload.param != "none" and before.offload.param == "none":
        found |= WEIGHTS_OFFLOADED
    if "expandable_segments:True" in after.allocator.conf and after.allocator != before.allocator:
        found |= DEFRAGMENTED
    if before.precision.dtype == "fp32" and after.precision.dtype != "fp32":
        found |= HALF_PRECISION
    if after.kernels != before.kernels:
        found |= LOSS_FUSED
    if after.attention != before.attention:
        found |= SCORES_NOT_KEPT
    found |= ADAPTERS.get((before.adapter.method, after.adapter.method), {})
    return found


def at_most(reach: Reach, held: Mapping[str, int]) -> int:
    """Return the bytes that a change takes off at most. ``held``: kind -> bytes, with the allocator's slack."""
    return int(sum(share * held.get(kind, 0) for kind, share in reach.items()))
