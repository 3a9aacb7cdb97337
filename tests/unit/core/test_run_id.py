"""The name of a run: equal for equal configurations, and readable."""

import re

import pytest

from memlab.core.plan import config_hash, run_id


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
        *(("model.overrides", {"num_hidden_layers": 1}), ("optimizer.lr", 2e-5), ("hardware.usd_per_gpu_hour", 1.0)),
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
    assert run_id(config({"deepspeed": {}, "training_args": {}})) == run_id(config())


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


def test_keys_of_ones_own_are_in_the_name_and_make_a_run_of_its_own(config):
    one, two = (config({"own": {"schedule": {"slow": value}, "note": "a b"}}) for value in (1, 2))
    assert run_id(one).startswith("tiny-zero2-s512-b1-slow_1_note_a_b-2xCPU-")
    assert len({run_id(one), run_id(two), run_id(config())}) == 3
