"""Translation of what the ranks found into the words of conf/."""

from typing import Any

import pytest

from memlab.core.config import ZeroStage
from memlab.core.plan import Plan
from memlab.core.record import RankResult
from memlab.launch.user_command.found_config import found_values, plan_found

ROWS = {0: [{"micro_batches": 2, "largest_micro_batch": 3, "padded_length": 77}, {"padded_length": 90}]}

MODEL = {
    "trained": True,
    "parameters": 10,
    "dtypes": {"float32": 10},
    "config": {"_name_or_path": "owner/name", "model_type": "odd"},
    "attention": "sdpa",
    "gradient_checkpointing": False,
}
ENGINE = {
    "config": {
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
    },
    "zero": {**vars(ZeroStage(stage=2)), "overlap_comm": False, "offload_optimizer": {"device": "cpu"}},
    "micro_batch": 3,
}


def found(device: str = "cpu", **attached: Any) -> Plan:
    rank = RankResult(rank=0, device=device, device_name="NVIDIA H200", memory_source="host", device_total_bytes=2**37)
    return plan_found(found_values([{**rank.to_json(), "attached": attached}], ROWS, "python train.py"))


def test_without_ranks_only_the_command_is_known():
    nothing = plan_found(found_values([], {}, "python train.py"))
    assert nothing.config.training.command == "python train.py"
    assert {"model", "zero_stage", "batch", "seq_len", "hardware"} <= set(nothing.unknown_config)


def test_the_batch_is_the_largest_that_the_model_saw():
    config = found().config
    assert (config.batch.micro, config.batch.accumulation, config.seq_len.tokens) == (3, 2, 90)


def test_deepspeeds_json_is_translated():
    seen = found(deepspeed=[ENGINE], models=[MODEL])
    config = seen.config
    assert (config.zero_stage.stage, config.offload.optimizer, config.precision.dtype) == (2, "cpu", "bf16")
    assert (config.optimizer.source, config.optimizer.name, config.optimizer.lr) == ("deepspeed", "AdamW", 0.1)
    assert seen.choices | {"zero_stage": "zero2", "offload": "optimizer", "precision": "bf16"} == seen.choices
    assert "zero_stage" not in {key.partition(".")[0] for key in seen.unknown_config}


def test_words_where_libraries_have_blocks_are_unknown_and_end_nothing():
    json = dict.fromkeys(("bf16", "optimizer", "zero_optimization", "activation_checkpointing", "data_types"), "auto")
    engine = {"config": json, "zero": {"stage": 2, "offload_optimizer": "cpu", "offload_param": 1}}
    model = {**MODEL, "config": {"_name_or_path": 1}, "adapters": {"default": "lora"}, "quantization": "fp8"}
    values = {"gradient_checkpointing_kwargs": "{}", "adam_beta1": "0.9", "adam_beta2": 0.99}
    seen = found(deepspeed=[engine], models=[model], training_arguments={"values": values})
    assert (seen.config.zero_stage.stage, seen.config.offload.optimizer) == (2, "none")
    assert "adapter" in seen.unknown_config


def test_without_deepspeed_no_stage_is_claimed():
    seen = found(models=[MODEL], training_arguments={"values": {"bf16": True}})
    assert {"zero_stage", "offload", "precision"} <= set(seen.unknown_config)
    assert not {"zero_stage", "offload", "precision"} & seen.choices.keys()


def test_autocast_is_not_deepspeeds_bf16_but_plain_fp32_is_fp32():
    plain = found(models=[MODEL], training_arguments={"values": {}}, accelerate={"mixed_precision": "no"})
    assert plain.choices["precision"] == "fp32"


def test_a_value_for_which_there_is_no_word_is_unknown():
    seen = found(models=[{**MODEL, "attention": "my_own_kernel"}])
    assert "attention" in seen.unknown_config and seen.config.attention.implementation == "sdpa"


@pytest.mark.parametrize(
    ("name", "defaults", "option"),
    [
        ("torch.optim.adamw.AdamW", {"fused": True}, "adamw_torch"),
        ("torch.optim.adamw.AdamW", {"fused": None}, "adamw_torch_foreach"),
        ("torch.optim.sgd.SGD", {}, "sgd"),
        ("mine.Sophia", {}, None),
    ],
)
def test_optimizers_have_transformers_names(name, defaults, option):
    seen = found(optimizers=[{"class": name, "defaults": {"lr": 0.5, **defaults}, "calls": 3}])
    assert seen.choices.get("optimizer") == option
    assert seen.config.optimizer.lr == 0.5


def test_adapters_are_found():
    lora = {"default": {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": ["v_proj", "q_proj"]}}
    config = found(models=[{**MODEL, "adapters": lora}]).config
    assert (config.adapter.method, config.adapter.rank, config.adapter.target_modules) == (
        "lora",
        8,
        ["q_proj", "v_proj"],
    )


def test_the_gpu_of_the_rank_is_the_hardware():
    hardware = found("cuda:0", world_size=4, local_world_size=2).config.hardware
    assert (hardware.gpu, hardware.gpus, hardware.nodes, hardware.memory_gib) == ("NVIDIA H200", 2, 2, 128.0)
    assert hardware.bf16_tflops == 989.5


def test_ranks_on_a_cpu_are_on_one_node_whatever_accelerate_says():
    rank = RankResult(rank=0, device="cpu", device_name="CPU", memory_source="host").to_json()
    facts = {"world_size": 2, "local_world_size": 1}
    ranks = [{**rank, "rank": number, "attached": {**facts, "local_rank": number}} for number in (0, 1)]
    hardware = plan_found(found_values(ranks, ROWS, "deepspeed train.py")).config.hardware
    assert (hardware.gpus, hardware.nodes) == (2, 1)


def test_the_allocators_variable_is_known_also_if_it_is_not_set():
    assert found().choices["allocator"] == "default"
    assert found(environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}).choices["allocator"] == "expandable"


def test_a_command_on_a_known_gpu_has_its_list_price():
    assert found("cuda:0", world_size=2, local_world_size=2).config.hardware.total_usd_per_hour == 7.0
    assert found("cpu", world_size=2).config.hardware.total_usd_per_hour is None
