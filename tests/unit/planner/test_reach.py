"""What a change can take off: kinds of memory, by the rules of ZeRO, offloading and checkpointing."""

import pytest

from memlab.planner.changes import TWICE_THE_RANKS, Change, changes_of


@pytest.mark.parametrize(
    ("before", "change", "expected"),
    [
        ({}, "checkpointing=full", {"activations": 1.0}),
        ({"checkpointing.enabled": True}, "checkpointing=full", None),
        (
            {"batch.micro": 4},
            "batch.micro=2",
            dict.fromkeys(("activations", "activation gradients", "logits and loss"), 0.5),
        ),
        ({"zero_stage.stage": 1}, "zero_stage=zero3", {"gradients": 0.5, "weights": 0.5}),
        ({"zero_stage.stage": 2}, "zero_stage=zero1", None),  # a step back
        ({"zero_stage.stage": 2}, "zero_stage.reduce_bucket_size=50000000", {"communication buckets": 0.9}),
        ({"zero_stage.stage": 0}, "zero_stage.reduce_bucket_size=50000000", None),  # it has no such buckets
        ({"zero_stage.stage": 3, "offload.optimizer": "cpu"}, "offload=all", {"weights": 1.0}),
        ({"zero_stage.stage": 3, "offload.param": "cpu"}, "offload=optimizer", None),  # weights would come back
        ({}, "allocator=expandable", {"allocator slack": 1.0}),
        ({}, "adapter=qlora", None),
        ({"adapter.method": "lora"}, "adapter=qlora", {"weights": 0.75}),
    ],
)
def test_reach(config, before, change, expected):
    assert {each.told: each.reach for each in changes_of(config(before))}.get(change) == expected


def test_the_limit_is_the_sum_over_the_kinds():
    assert Change("", "", TWICE_THE_RANKS).at_most({"weights": 100, "gradients": 60, "activations": 1000}) == 80
