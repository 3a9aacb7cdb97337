"""Single changes that can save memory: what each costs, and what it can take off a GPU at most.

``CHANGES`` are the changes of memlab's own training, as words of its command line; planner/command_changes.py makes the
changes of a command. The limits follow from the rules of ZeRO and of offloading: they are shares of kinds of memory.
They say nothing about what a change adds (buffers, gathered weights, the inputs that checkpointing keeps), nor about
which moment is the peak then. ``memlab plan --changes`` predicts the real savings.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from memlab.core.config import Config
from memlab.core.plan import Plan
from memlab.core.record import Record
from memlab.prediction.memory.ledger import SLACK
from memlab.simulator.trace import memory_kinds as kinds

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
ADAPTED: Reach = dict.fromkeys((kinds.GRADIENTS, kinds.MASTER, kinds.OPTIMIZER, kinds.STEP), 1.0)
QUANTIZED: Reach = {kinds.WEIGHTS: 0.75}  # of 16 bits
HALF_PRECISION: Reach = dict.fromkeys((kinds.WEIGHTS, kinds.GRADIENTS, *PER_SAMPLE), 0.5)
LOSS_FUSED: Reach = {kinds.LOGITS: 1.0}
SCORES_NOT_KEPT: Reach = dict.fromkeys((kinds.ACTIVATIONS, kinds.ACTIVATION_GRADIENTS), 1.0)
TWICE_THE_RANKS: Reach = dict.fromkeys((kind for found in SHARDED_FROM.values() for kind in found), 0.5)
"""Where the ranks share out everything that ZeRO can shard."""

EXPANDABLE = "expandable_segments:True"
SMALL_BUCKET = 50_000_000  # elements

FREE = "no extra computation"
SECOND_FORWARD = "a second forward pass in each step"
GRADIENTS_REDUCED = "gradients reduced to their owners"
WEIGHTS_GATHERED = "weights gathered in every pass"
STEP_ON_CPU = "an optimizer step on the CPU"
WEIGHTS_OVER_PCIE = "weights over PCIe in every pass"


def halved_batch(micro: int) -> Reach:
    return dict.fromkeys(PER_SAMPLE, 1 - micro // 2 / micro)


def sharded(before: int, after: int, ranks: int) -> Reach:
    """Return the reach of a higher ZeRO stage: what this stage shards, and the stage before does not."""
    found = (kind for stage in range(before + 1, after + 1) for kind in SHARDED_FROM[stage])
    return dict.fromkeys(found, 1 - 1 / ranks)


def _stage(stage: int) -> Callable[[Config], Reach]:
    return lambda config: sharded(config.zero_stage.stage, stage, config.hardware.world_size)


def _small_buckets(config: Config) -> Reach:
    before = config.zero_stage.reduce_bucket_size
    return {kinds.BUCKETS: 1 - SMALL_BUCKET / before} if config.zero_stage.stage and before > SMALL_BUCKET else {}


def _offloaded(config: Config) -> Reach:
    on_device = config.offload.optimizer == config.offload.param == "none"
    return OPTIMIZER_OFFLOADED if on_device and config.zero_stage.stage > 0 else {}


def _all_offloaded(config: Config) -> Reach:
    if config.zero_stage.stage < 3 or config.offload.param != "none":
        return {}
    return {**WEIGHTS_OFFLOADED, **_offloaded(config)}


def _from(option: str, value: str, reach: Reach) -> Callable[[Config], Reach]:
    """Return the reach of a change that replaces one value of an option."""
    return lambda config: reach if attrgetter(option)(config) == value else {}


CHANGES: tuple[tuple[str, str, Callable[[Config], Reach]], ...] = (
    ("allocator=expandable", FREE, lambda config: {} if EXPANDABLE in config.allocator.conf else DEFRAGMENTED),
    ("checkpointing=full", SECOND_FORWARD, lambda config: {} if config.checkpointing.enabled else CHECKPOINTED),
    ("zero_stage=zero1", "weights gathered after each step", _stage(1)),
    ("zero_stage=zero2", GRADIENTS_REDUCED, _stage(2)),
    ("zero_stage=zero3", WEIGHTS_GATHERED, _stage(3)),
    (f"zero_stage.reduce_bucket_size={SMALL_BUCKET}", "more and smaller reductions", _small_buckets),
    ("offload=optimizer", STEP_ON_CPU, _offloaded),
    ("offload=all", f"{STEP_ON_CPU}, and {WEIGHTS_OVER_PCIE}", _all_offloaded),
    ("attention=sdpa", FREE, lambda config: {} if config.attention.implementation == "sdpa" else SCORES_NOT_KEPT),
    ("kernels=liger", "one more package", _from("kernels.implementation", "none", LOSS_FUSED)),
    ("precision=bf16", "computing in 16 bits", _from("precision.dtype", "fp32", HALF_PRECISION)),
    ("adapter=lora", "training an adapter in place of all weights", _from("adapter.method", "none", ADAPTED)),
    ("adapter=qlora", "training an adapter on weights of 4 bits", _from("adapter.method", "lora", QUANTIZED)),
)
"""Word, price and reach of each change. An adapter changes by one step at a time: none, lora, qlora."""


@dataclass(frozen=True)
class Change:
    """One change of a run. ``told``: as it is typed; ``price``: what it costs; ``reach``: what it can take off at most.

    The changed run: ``plan`` of memlab's own training; of a command ``words``, or only the settings of its allocator,
    ``allocator_conf``. ``deepspeed``: content of a new DeepSpeed JSON, whose path takes the place of ``JSON_PLACE`` in
    ``words``.
    """

    told: str
    price: str
    reach: Reach
    words: tuple[str, ...] | None = None
    allocator_conf: str | None = None
    deepspeed: Mapping[str, Any] | None = None
    plan: Plan | None = None

    def at_most(self, held: Mapping[str, int]) -> int:
        """Return the bytes that it takes off at most. ``held``: kind -> bytes, with the allocator's slack."""
        return int(sum(share * held.get(kind, 0) for kind, share in self.reach.items()))


def changes_of(config: Config) -> Iterator[Change]:
    """Yield the changes of memlab's own training that can take something off, without their plans."""
    for word, price, reach in CHANGES:
        if takes := reach(config):
            yield Change(word, price, takes)
    if (micro := config.batch.micro) > 1:
        yield Change(f"batch.micro={micro // 2}", "more steps, or batch.accumulation", halved_batch(micro))


def likely_remedies(record: Record) -> list[tuple[Change, int]]:
    """Return the changes of a predicted run that keep its model and kernels, and the most bytes that each takes off the
    peak of the fullest rank, the largest saving first. Empty for a command, and if no rank has a breakdown."""
    broken_down = [rank for rank in record.ranks if (rank.get("breakdown") or {}).get("phases")]
    if record.command or not broken_down:
        return []
    fullest = max(broken_down, key=lambda rank: rank["peak_reserved_bytes"] or 0)
    held = fullest["breakdown"]["phases"].get(fullest["breakdown"]["peak_phase"], {})
    kept = {f"zero_stage=zero{record.config.zero_stage.stage + 1}", "checkpointing=full", "allocator=expandable"}
    found = [
        (change, change.at_most(held))
        for change in changes_of(record.config)
        if change.told in kept or change.told.startswith(("batch.", "offload="))
    ]
    return sorted(((change, nbytes) for change, nbytes in found if nbytes), key=lambda each: -each[1])
