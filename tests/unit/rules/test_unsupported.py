"""Every rule has a configuration that it alone refuses, and what people study is not refused."""

import importlib.util
import re
from itertools import product
from pathlib import Path

import pytest

from memlab.core.config import ZeroStage
from memlab.core.sizes import GIB
from memlab.rules.model import LIGER_FAMILIES
from memlab.rules.rule import Rule
from memlab.rules.unsupported import RULES, unsupported
from memlab.system.machine import Gpu, Machine

GPU = {"hardware.device": "cuda", "hardware.gpu": "H200"}
ZERO3 = {"zero_stage.stage": 3}
TRANSFORMERS = {"optimizer.source": "transformers"}
BNB = {**TRANSFORMERS, "optimizer.name": "adamw_bnb_8bit"}
BF16_MASTER = {"precision.bf16_master_weights_and_grads": True}

TRIGGERS = {
    "only ZeRO stage 3 partitions parameters": {"offload.param": "cpu"},
    "no optimizer offload at ZeRO stage 0": {"zero_stage.stage": 0, "offload.optimizer": "cpu"},
    "NVMe offload exists at ZeRO stage 3 only": {"offload.optimizer": "nvme", "offload.nvme_path": "/nvme"},
    "needs a folder on the NVMe device": {**ZERO3, "offload.optimizer": "nvme"},
    "a partial optimizer offload": {"offload.optimizer": "cpu", "offload.ratio": 0.5},
    "super_offload exists": {"offload.optimizer": "cpu", "offload.super_offload": True},
    "nothing is offloaded, so the other": {"offload.pin_memory": False},
    "so offload.nvme_path has no effect": {"offload.optimizer": "cpu", "offload.nvme_path": "/nvme"},
    "belong to an optimizer on NVMe": {"offload.optimizer": "cpu", "offload.pipeline_read": True},
    "belong to parameters on NVMe": {**ZERO3, "offload.param": "cpu", "offload.max_in_cpu": 7},
    "so both must be there": {
        **ZERO3,
        "offload.optimizer": "nvme",
        "offload.nvme_path": "/nvme",
        "offload.fast_init": True,
    },
    "belongs to super_offload": {"offload.optimizer": "cpu", "offload.cpuadam_cores_perc": 0.5},
    "ZenFlow": {"zero_stage.zenflow": {"topk_ratio": 0.1}},
    "activation_checkpointing keys": {"checkpointing.enabled": True, "checkpointing.cpu_checkpointing": True},
    "checkpointing.reentrant": {"checkpointing.reentrant": True},
    "fp16 on a CPU": {"precision.dtype": "fp16"},
    "belong to bf16 training": {"precision.dtype": "fp32", "precision.immediate_grad_update": True},
    "only fp16 training scales": {"precision.loss_scale": 128.0},
    "bf16 only with bf16 master": {"precision.bf16_optimizer_states": True},
    "belong to its ZeRO optimizers": {"zero_stage.stage": 0, **BF16_MASTER, "precision.bf16_optimizer_states": True},
    "exist with DeepSpeed's CPU Adam only": BF16_MASTER,
    "without ZeRO, DeepSpeed accumulates": {"zero_stage.stage": 0, "precision.grad_accum_dtype": "fp32"},
    "flash attention runs on GPUs": {"attention.implementation": "flash_attention_2"},
    "flash attention computes in": {**GPU, "attention.implementation": "flash_attention_3", "precision.dtype": "fp32"},
    "all weights are trained": {"adapter.rank": 8},
    "belong to weights in 4 bits": {"adapter.method": "lora", "adapter.double_quant": False},
    "Triton kernels run on GPUs": {"kernels.implementation": "liger"},
    "no kernels for this model's family": {
        **GPU,
        "kernels.implementation": "liger",
        "model.config": {"model_type": "falcon"},
    },
    "no CUDA caching allocator": {"allocator.conf": "expandable_segments:True"},
    "torch-optimi can be measured on GPUs only": BNB,
    "torch-optimi step on the GPU": {**GPU, **BNB, "offload.optimizer": "cpu"},
    "for TPUs or Ascend NPUs": {**TRANSFORMERS, "optimizer.name": "adamw_torch_xla"},
    "GaLore and APOLLO": {**TRANSFORMERS, "optimizer.name": "galore_adamw_8bit"},
    "LOMO": {**TRANSFORMERS, "optimizer.name": "adalomo"},
    "schedule-free": {**TRANSFORMERS, "optimizer.name": "schedule_free_sgd", "zero_stage.stage": 0},
    "two parameter groups": {**TRANSFORMERS, "optimizer.name": "adagrad"},
    "fp32 weights that have none": {"optimizer.name": "Adagrad", "zero_stage.stage": 0},
    "mup's optimizers": {"optimizer.name": "MuAdam"},
    "LAMB scales the update of each whole tensor": {**GPU, "optimizer.name": "Lamb"},
    "LAMB is a CUDA kernel": {"optimizer.name": "lamb", "zero_stage.stage": 0},
    "Lion is a CUDA kernel": {"optimizer.name": "Lion"},
    "Muon needs whole gradients": {**ZERO3, "optimizer.name": "Muon"},
    "takes no optimizer.eps": {**GPU, "optimizer.name": "lion", "optimizer.eps": 1e-6},
    "data=jsonl needs a file": {"data.source": "jsonl"},
    "has no published weights": {"model.weights": "pretrained"},
    "learned position embeddings": {
        "model.config": {"model_type": "gpt2", "n_positions": 1024},
        "seq_len.tokens": 1025,
    },
}
"""Part of the reason -> the smallest change of the defaults that only this rule refuses."""


def rules_that_say(part: str) -> list[Rule]:
    return [rule for rule in RULES if part in rule.why]


@pytest.mark.parametrize(("part", "changes"), TRIGGERS.items(), ids=list(TRIGGERS))
def test_a_rule_refuses_its_configuration_alone(config, part, changes):
    [rule] = rules_that_say(part)
    assert unsupported(config(changes), None) == [f"{rule.why}; instead: {rule.instead}"]


@pytest.mark.parametrize(
    ("name", "key"), [("sgd", "betas"), ("adafactor", "eps"), ("lion_8bit", "eps"), ("rmsprop_bnb_8bit", "betas")]
)
def test_a_hyperparameter_that_trainer_gives_to_no_such_optimizer_is_refused(config, name, key):
    chosen = {**GPU, **TRANSFORMERS, "optimizer.name": name}
    value = {"betas": [0.5, 0.9], "eps": 1e-6}[key]
    assert "leave it out" in "".join(unsupported(config(chosen | {f"optimizer.{key}": value}), None))
    assert unsupported(config(chosen), None) == []
    assert unsupported(config({**chosen, "optimizer.name": "adamw_bnb_8bit", f"optimizer.{key}": value}), None) == []


def test_every_rule_has_a_configuration_that_it_refuses():
    without = [rule.why for rule in RULES if not any(part in rule.why for part in TRIGGERS)]
    assert not without, f"Add to TRIGGERS what these rules refuse: {without}"


def test_what_people_study_is_supported(config):
    """Stages x offload x checkpointing x precision x allocator on GPUs, but for what has no meaning at its stage."""
    meaningful = {0: ["none"], 1: ["none", "optimizer"], 2: ["none", "optimizer"], 3: ["none", "optimizer", "all"]}
    where = {"none": ("none", "none"), "optimizer": ("cpu", "none"), "all": ("cpu", "cpu")}
    allocators = ("", "expandable_segments:True")
    for stage, offloads in meaningful.items():
        for offload, full, dtype, allocator in product(offloads, (False, True), ("bf16", "fp16", "fp32"), allocators):
            optimizer, param = where[offload]
            changes = {
                **{**GPU, "zero_stage.stage": stage, "offload.optimizer": optimizer, "offload.param": param},
                **{"checkpointing.enabled": full, "precision.dtype": dtype, "allocator.conf": allocator},
            }
            assert unsupported(config(changes), None) == [], changes


ALL_NVME = {**ZERO3, "offload.optimizer": "nvme", "offload.param": "nvme", "offload.nvme_path": "/nvme"}


@pytest.mark.parametrize(
    "changes",
    [
        {"offload.pipeline_read": True, "offload.pipeline_write": True, "offload.optimizer_buffer_count": 5},
        {"offload.param_buffer_count": 7, "offload.param_buffer_size": 7, "offload.max_in_cpu": 0},
        {"offload.fast_init": True},
    ],
)
def test_what_belongs_to_nvme_is_supported_there_and_refused_on_the_cpu(config, changes):
    assert unsupported(config({**ALL_NVME, **changes}), None) == []
    for key, value in changes.items():
        on_cpu = {**ZERO3, "offload.optimizer": "cpu", "offload.param": "cpu", key: value}
        assert len(unsupported(config(on_cpu), None)) == 1


@pytest.mark.parametrize("words", [["hardware=cpu"], ["hardware=h200_x8", "model=llama3_8b", "zero_stage=zero3"]])
def test_what_the_readme_runs_is_supported(composed, words):
    assert unsupported(composed(*words)[0], None) == []


@pytest.mark.parametrize(
    ("key", "value", "without_effect_at"),
    [
        ("stage3_max_live_parameters", 7, [0, 1, 2]),
        ("sub_group_size", 7, [0, 1, 2]),
        ("round_robin_gradients", True, [0, 3]),
        ("reduce_bucket_size", 7, [0]),
        ("overlap_comm", True, [0]),
    ],
)
def test_a_key_that_its_stage_does_not_read_is_refused(config, key, value, without_effect_at):
    for stage in range(4):
        reasons = unsupported(config({"zero_stage.stage": stage, f"zero_stage.{key}": value}), None)
        refused = [f"DeepSpeed does not read zero_stage.{key} at ZeRO stage {stage}; instead: leave it out"]
        assert reasons == (refused if stage in without_effect_at else [])


def test_a_key_at_its_default_is_never_refused(config):
    for stage in range(4):
        assert unsupported(config({"zero_stage.stage": stage}), None) == []
    assert ZeroStage().overlap_comm is None  # the default of both, whatever it becomes at a stage


def test_the_families_of_liger_are_those_of_the_installed_package():
    """Read, not imported: it would load Triton. Those with pictures, as no causal language model, may be missing."""
    package = Path(importlib.util.find_spec("liger_kernel").origin).parent
    text = (package / "transformers" / "monkey_patch.py").read_text()
    known = re.findall(r'^    "(\w+)": apply_liger_kernel_to_\w+,', text, re.MULTILINE)
    assert set(LIGER_FAMILIES) <= set(known)


# --- the machine


class Bare(Machine):
    """A machine with nothing installed."""

    has_package = has_library = staticmethod(lambda name: False)


class Full(Machine):
    has_package = has_library = staticmethod(lambda name: True)


H200S = tuple(Gpu(str(i), "NVIDIA H200", 140 * GIB, (9, 0)) for i in range(2))


@pytest.mark.parametrize(
    ("changes", "machine", "reason"),
    [
        ({**GPU, "hardware.gpus": 8}, Full(), "8 x H200 cannot be measured on a machine without a GPU; "),
        ({**GPU, "hardware.gpus": 8}, Full(H200S), "hardware.gpus=8, but this machine has 2; instead: hardware.gpus=2"),
        (
            {**GPU, "hardware.gpu": "H100"},
            Full(H200S),
            "the hardware entry is for H100, but this machine has NVIDIA H200; ",
        ),
        ({**GPU, "attention.implementation": "flash_attention_2"}, Bare(H200S), "the Python package flash_attn is"),
        ({**GPU, "attention.implementation": "flash_attention_3"}, Bare(H200S), "the Python package flash_attn_inter"),
        ({**GPU, **BNB}, Bare(H200S), "the Python package bitsandbytes is not installed"),
        (
            {**GPU, "adapter.method": "lora"},
            Bare(H200S),
            "the Python package peft is not installed; instead: pip install 'memlab[adapters]'",
        ),
        ({**ZERO3, "offload.optimizer": "nvme", "offload.nvme_path": "/n"}, Bare(), "DeepSpeed's NVMe offload needs "),
    ],
)
def test_what_this_machine_cannot_do(config, changes, machine, reason):
    [found] = unsupported(config(changes), machine)
    assert found.startswith(reason)
    assert "; instead: " in found


def test_the_extra_that_kernels_need_is_named(config):
    assert unsupported(config({**GPU, "kernels.implementation": "liger"}), Bare(H200S)) == [
        f"the Python package {package} is not installed; instead: pip install 'memlab[kernels]'"
        for package in ("liger_kernel", "triton")
    ]


@pytest.mark.parametrize(("changes", "machine"), [({}, Bare()), ({}, Bare(H200S)), ({**GPU}, Bare(H200S))])
def test_what_this_machine_can_do(config, changes, machine):
    assert unsupported(config(changes), machine) == []


def test_a_prediction_needs_neither_gpus_nor_packages(config):
    changes = {**GPU, "hardware.gpus": 8, "attention.implementation": "flash_attention_2"}
    assert unsupported(config(changes), None) == []
