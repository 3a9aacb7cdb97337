"""What will run: golden plans, purity, and the identity of a run."""

import builtins
import os
import re
from dataclasses import asdict

import pytest

from memlab.core.config import ZeroStage, to_dict
from memlab.core.deepspeed_json import applies
from memlab.core.plan import make_plan, needs_hub
from memlab.core.run_id import config_hash, run_id
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


# --- identity


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["offload=optimizer"], ["offload=none", "offload.optimizer=cpu"]),
        (["seq_len=s1024"], ["seq_len=s512", "seq_len.tokens=1024"]),
        (["allocator=expandable"], ["allocator=custom", "allocator.conf=expandable_segments:True"]),
        (["zero_stage=zero3", "batch=b2"], ["batch.micro=2", "zero_stage.stage=3"]),
        (["optimizer.lr=1"], ["optimizer.lr=1.0"]),
        (["precision=bf16", "model=tiny"], []),
    ],
)
def test_equal_configurations_are_one_run_whatever_was_typed(composed, words, others):
    assert run_id(composed("hardware=cpu", *words)[0]) == run_id(composed("hardware=cpu", *others)[0])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("name", "mine"), ("force", True), ("measure.timeout_s", 7), ("measure.repeats", 3)),
        *(("sweep.isolation", "fresh"), ("sweep.prune", False), ("sweep.max_usd", 1.0), ("sweep.dry_run", True)),
    ],
)
def test_what_is_not_measured_does_not_make_another_run(config, key, value):
    assert run_id(config({key: value})) == run_id(config())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("seed", 1), ("measure.steps", 11), ("zero_stage.reduce_bucket_size", 1), ("mode", "predict")),
        *(("model.overrides", {"num_hidden_layers": 1}), ("optimizer.lr", 2e-5), ("hardware.usd_per_hour", 1.0)),
        ("measure.repeat", 2),
    ],
)
def test_what_is_measured_makes_another_run(config, key, value):
    assert config_hash(config({key: value})) != config_hash(config())


def test_groups_added_since_leave_the_identity_of_a_run_without_them(config):
    """The name that a run of these values had before there were adapters and kernels."""
    assert run_id(config()) == "tiny-zero2-s512-b1-2xCPU-927089ec"
    assert run_id(config({"adapter.method": "lora"})).startswith("tiny-zero2-s512-b1-lora16-2xCPU-")
    assert run_id(config({"kernels.implementation": "liger"})).startswith("tiny-zero2-s512-b1-liger-2xCPU-")


def test_a_run_id_says_what_a_person_looks_for(config):
    changes = {
        **{"zero_stage.stage": 3, "offload.optimizer": "nvme", "offload.param": "nvme", "checkpointing.enabled": True},
        **{"allocator.conf": "expandable_segments:True", "batch.accumulation": 2, "precision.dtype": "fp16"},
        **{"attention.implementation": "eager", "mode": "predict", "hardware.gpu": "NVIDIA H200"},
    }
    expected = r"tiny-zero3-all_nvme-expandable-checkpointing-s512-b1-x2-fp16-eager-2xH200-predicted-[0-9a-f]{8}"
    assert re.fullmatch(expected, run_id(config(changes)))


@pytest.mark.parametrize(
    ("optimizer", "param", "word"),
    [
        ("cpu", "none", "optimizer"),
        ("none", "cpu", "param"),
        ("cpu", "cpu", "all"),
        ("cpu", "nvme", "optimizer_and_param_nvme"),
    ],
)
def test_a_run_id_says_what_is_offloaded(config, optimizer, param, word):
    changed = config({"zero_stage.stage": 3, "offload.optimizer": optimizer, "offload.param": param})
    assert run_id(changed).startswith(f"tiny-zero3-{word}-s512")


@pytest.mark.parametrize(
    "path", ["Qwen/Qwen2.5-0.5B", "/home/me/my models/x/", "..", "a" * 400, "x/$(rm -rf)", "é/ü:*"]
)
def test_a_run_id_is_a_folder_name(config, path):
    name = run_id(config({"model.path": path}))
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", name)
    assert len(name) < 200 and name.strip(".")


# --- its parts


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


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_key_that_a_stage_reads_is_written_out(config, stage):
    written = make_plan(config({"zero_stage.stage": stage}), {}).deepspeed["zero_optimization"]
    read = {key for key in asdict(ZeroStage()) if applies(key, stage)} - {"zenflow", "leaf_module"}
    assert set(written) == read


def test_only_stage_3_has_the_keys_of_stage_3():
    stage3 = {key for key in asdict(ZeroStage()) if key.startswith("stage3_")}
    assert stage3 and all(applies(key, 3) and not applies(key, 2) for key in stage3)
    assert [key for key in asdict(ZeroStage()) if applies(key, 0)] == ["stage"]
