"""What will run: golden plans, purity, the environment."""

import builtins
import os
from dataclasses import asdict

import pytest

from memlab.core.config_values import to_dict
from memlab.core.plan import make_plan, needs_hub
from memlab.runs.decode import decode_plan

PLANS = {
    "cpu_defaults": ["hardware=cpu"],
    "cpu_adamw_torch": ["hardware=cpu", "optimizer=adamw_torch", "zero_stage=zero1", "precision=fp32"],
    "gpu_zero0": ["hardware=h200_x1", "model=qwen15_05b", "zero_stage=zero0"],
    "gpu_zero1_offload": ["hardware=h200_x8", "zero_stage=zero1", "offload=optimizer"],
    "gpu_zero2_expandable": ["hardware=h200_x8", "allocator=expandable", "batch.micro=4", "batch.accumulation=2"],
    "gpu_zero2_custom_allocator": ["hardware=h200_x8", "allocator=custom", "allocator.conf='max_split_size_mb:512'"],
    "gpu_zero3": ["hardware=h200_x8", "model=llama3_8b", "zero_stage=zero3", "seq_len.tokens=2001"],
    "gpu_zero3_own_buckets": [
        *(
            "hardware=h200_x8",
            "zero_stage=zero3",
            "zero_stage.reduce_bucket_size=1000",
            "zero_stage.overlap_comm=false",
        ),
        *("zero_stage.stage3_max_live_parameters=2000", "zero_stage.leaf_module={classes: [MixtralSparseMoeBlock]}"),
    ],
    "gpu_zero3_offload_all": ["hardware=h200_x8", "zero_stage=zero3", "offload=all", "offload.pin_memory=false"],
    "gpu_zero3_nvme": ["hardware=h200_x8", "zero_stage=zero3", "offload=all_nvme", "offload.nvme_path=/nvme"],
    "gpu_checkpointing_reentrant": ["hardware=h200_x8", "checkpointing=full", "checkpointing.reentrant=true"],
    "gpu_fp16_static_scale": ["hardware=h200_x8", "precision=fp16", "precision.loss_scale=128"],
    "gpu_bf16_states": [
        *("hardware=h200_x8", "precision.bf16_master_weights_and_grads=true", "precision.bf16_optimizer_states=true"),
        "precision.grad_accum_dtype=fp32",
    ],
    "gpu_adamw_8bit": ["hardware=h200_x8", "optimizer=adamw_8bit", "optimizer.lr=3e-4", "optimizer.weight_decay=0.1"],
    "gpu_qlora_liger": ["hardware=h200_x8", "model=llama3_8b", "adapter=qlora", "adapter.rank=64", "kernels=liger"],
    "gpu_hub_weights_and_text": ["hardware=h200_x8", "model=llama3_8b", "model.weights=pretrained", "data=guanaco"],
}


@pytest.fixture
def planned(composed):
    return lambda name: make_plan(*composed(*PLANS[name]))


def values_of(tree) -> list:
    """All values of a tree of dictionaries and lists."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in values_of(value)]
    if isinstance(tree, list):
        return [leaf for value in tree for leaf in values_of(value)]
    return [tree]


@pytest.mark.parametrize("name", PLANS)
def test_golden_plans(planned, golden, name):
    plan = planned(name)
    values = {key: asdict(plan)[key] for key in ("world_size", "deepspeed", "training_args", "environment")}
    golden(f"plans/{name}.json", values, "what these words run has changed, so older figures no longer compare.")


def test_no_golden_plan_is_left_over(request):
    folder = request.path.parents[1] / "golden" / "plans"
    assert {path.stem for path in folder.glob("*.json")} == set(PLANS)


@pytest.mark.parametrize("name", PLANS)
def test_nothing_is_left_to_be_decided_later(planned, name):
    values = planned(name).to_json()
    del values["config"]["sweep"]  # of memlab itself: side_by_side=auto
    assert not {"auto", "???"} & {value for value in values_of(values) if isinstance(value, str)}
    assert None not in values_of(values["deepspeed"])


def test_a_plan_reads_no_file_and_no_environment(composed, monkeypatch):
    config, choices = composed(*PLANS["gpu_zero3_nvme"])

    def poisoned(*args, **kwargs):
        raise AssertionError("a plan must be pure")

    class Poisoned(dict):
        __getitem__ = get = items = __contains__ = __iter__ = __setitem__ = poisoned

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", poisoned)
        patch.setattr(os, "open", poisoned)
        patch.setattr(os, "environ", Poisoned())
        plan = make_plan(config, choices)
    assert plan == make_plan(config, choices)


def test_a_plan_does_not_change_its_configuration(config):
    original = config({"zero_stage.zenflow": {"topk_ratio": 0.1}, "offload.optimizer": "cpu"})
    before = to_dict(original)
    plan = make_plan(original, {})
    plan.deepspeed["zero_optimization"]["zenflow"]["topk_ratio"] = 1
    assert to_dict(original) == before


def test_a_plan_survives_json(planned):
    plan = planned("gpu_zero3_own_buckets")
    assert decode_plan(plan.to_json(), "plan") == plan


def test_the_allocator_string_goes_under_both_names(config):
    environment = make_plan(config({"allocator.conf": "max_split_size_mb:64"}), {}).environment
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == environment["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64"
    assert not [name for name in make_plan(config(), {}).environment if "ALLOC_CONF" in name]


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, False),
        ({"data.source": "sample"}, False),
        ({"data.source": "guanaco"}, True),
        ({"data.source": "jsonl", "data.path": "x"}, True),
        ({"model.weights": "pretrained"}, True),
        ({"model.config": {}}, True),
    ],
)
def test_the_hub_is_asked_only_where_it_is_needed(config, changes, needed):
    changed = config(changes)
    assert needs_hub(changed) is needed
    assert ("HF_HUB_OFFLINE" in make_plan(changed, {}).environment) is not needed
