"""What a change can take off: kinds of memory, by the rules of ZeRO, offloading and checkpointing."""

import pytest

from memlab.planner.reach import at_most, on_more_ranks, reach


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"checkpointing.enabled": True}, {"activations": 1.0}),
        ({"checkpointing.enabled": True}, {}, {}),
        (
            {"batch.micro": 4},
            {"batch.micro": 1},
            dict.fromkeys(("activations", "activation gradients", "logits and loss"), 0.75),
        ),
        ({"zero_stage.stage": 1}, {"zero_stage.stage": 3}, {"gradients": 0.5, "weights": 0.5}),
        (
            {"zero_stage.stage": 2},
            {"zero_stage.stage": 2, "zero_stage.reduce_bucket_size": 5 * 10**7},
            {"communication buckets": 0.9},
        ),
        (
            {"zero_stage.stage": 0},
            {"zero_stage.stage": 0, "zero_stage.reduce_bucket_size": 5 * 10**7},
            {},  # stage 0 has no such buckets
        ),
        (
            {"zero_stage.stage": 3, "offload.optimizer": "cpu"},
            {"zero_stage.stage": 3, "offload.optimizer": "cpu", "offload.param": "cpu"},
            {"weights": 1.0},
        ),
        ({}, {"allocator.conf": "expandable_segments:True"}, {"allocator slack": 1.0}),
        ({}, {"adapter.method": "qlora"}, {}),
        ({"adapter.method": "lora"}, {"adapter.method": "qlora"}, {"weights": 0.75}),
    ],
)
def test_reach(config, before, after, expected):
    assert reach(config(before), config(after)) == expected


def test_the_limit_is_the_sum_over_the_kinds():
    assert at_most(on_more_ranks(2), {"weights": 100, "gradients": 60, "activations": 1000}) == 80
