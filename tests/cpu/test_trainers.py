"""What the words of a trainer mean to its own parser is what was composed: each key that reaches it is found again."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from memlab.cli.compose import compose_config
from memlab.core.command_template import filled, given
from memlab.core.config import Config
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.plan import make_plan
from memlab.core.record import RankResult
from memlab.launch.launcher_line import free_port
from memlab.launch.user_command.found_config import found_values
from memlab.launch.user_command.measure import beside

pytestmark = [pytest.mark.cpu, pytest.mark.long(30)]

EVERYWHERE = [
    *(
        "model=hf",
        "model.path=owner/name",
        "hardware=cpu",
        "hardware.gpus=1",
        "batch.micro=3",
        "batch.accumulation=2",
        "seed=7",
    ),
    *("seq_len.tokens=48", "checkpointing=full", "checkpointing.reentrant=true", "optimizer.lr=3e-4"),
    *("optimizer.betas=[0.8,0.95]", "optimizer.eps=1e-6", "optimizer.weight_decay=0.1"),
    *("optimizer.gradient_clipping=0.5", "training_args.torch_empty_cache_steps=4"),
]
TRL = [
    *("attention=eager", "adapter=lora", "adapter.rank=4", "adapter.alpha=9", "adapter.dropout=0.2"),
    "adapter.target_modules=[k_proj,q_proj]",
]
CASES = {
    "trl_sft": [*TRL, "zero_stage=zero3", "offload=optimizer"],
    "trl_sft, qlora": [*TRL, "adapter=qlora", "adapter.quant_type=fp4", "adapter.quant_storage=bf16", "precision=fp32"],
    "trl_dpo": [*TRL, "zero_stage.reduce_bucket_size=1000", "optimizer=adafactor"],
    "hf_run_clm": ["training.script=run_clm.py", "zero_stage=zero1", "precision=fp32", "optimizer=sgd"],
    "accelerate_fsdp2": [*TRL, "zero_stage=zero3", "kernels=liger"],
}
FOUND = ("batch", "seq_len", "optimizer", "seed", "attention", "adapter", "model.path", "checkpointing.enabled")
"""Groups and keys that must be found, where the command was given them."""


@dataclass
class RunClm:
    """The arguments of transformers' example run_clm.py that memlab uses (transformers 5: ModelArguments, ...)."""

    model_name_or_path: str | None = None
    trust_remote_code: bool = False
    dtype: str | None = None
    train_file: str | None = None
    dataset_name: str | None = None
    block_size: int | None = None


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    """The environment of a rank that is alone, in which TrainingArguments begin a process group."""
    from accelerate.state import AcceleratorState
    from torch import distributed

    rank = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in rank.items():
        monkeypatch.setenv(name, str(value))
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)


def parsed(trainer: str, words: list[str]) -> dict[str, Any]:
    """Parse the words as the trainer does: name -> value of all its arguments, and ``args``, the TrainingArguments."""
    from transformers import HfArgumentParser, TrainingArguments
    from trl.scripts import dpo, sft

    if trainer == "hf_run_clm":
        parsed = HfArgumentParser((RunClm, TrainingArguments)).parse_args_into_dataclasses(words)
    else:
        parser = (dpo if trainer == "trl_dpo" else sft).make_parser()
        parsed = parser.parse_args_and_config(words, fail_with_unknown_args=True)
    values = {field.name: getattr(each, field.name) for each in parsed for field in fields(each)}
    (args,) = (each for each in parsed if isinstance(each, TrainingArguments))
    return {**values, "args": args, "parsed": parsed}


def facts_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the ranks would find of these arguments."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from trl import ModelConfig, get_peft_config, get_quantization_config

    args = found["args"]
    model = {"trained": True, "config": {"_name_or_path": found["model_name_or_path"]}, "dtypes": {"float32": 1}}
    model |= {"gradient_checkpointing": args.gradient_checkpointing, "attention": found.get("attn_implementation")}
    for each in (each for each in found["parsed"] if isinstance(each, ModelConfig)):
        peft, bits = get_peft_config(each), get_quantization_config(each)
        adapter = {**peft.to_dict(), "target_modules": sorted(peft.target_modules)}
        model |= {"adapters": {"default": adapter}, "quantization": bits and bits.to_dict()}
    facts: dict[str, Any] = {"models": [model], "training_arguments": {"values": args.to_dict()}}
    if args.deepspeed:
        config = args.hf_deepspeed_config.config
        zero = DeepSpeedZeroConfig(**config["zero_optimization"]).model_dump(mode="json")
        facts["deepspeed"] = [{"config": config, "zero": zero}]
    return {"world_size": 1, "phases": {}, **facts}


def found_in(config: Config, found: dict[str, Any], choices: dict[str, str]):
    args = found["args"]
    rank = RankResult(rank=0, device="cpu", device_name="CPU", memory_source="host").to_json()
    row = {
        "largest_micro_batch": args.per_device_train_batch_size,
        "micro_batches": args.gradient_accumulation_steps,
        "padded_length": found.get("max_length") or found["block_size"],
    }
    seen = found_values([{**rank, "attached": facts_of(found)}], {0: [row]}, config.training.command)
    return seen, beside(make_plan(config, choices), seen)[1]


@pytest.mark.parametrize("case", CASES)
def test_what_was_composed_is_found_in_the_words(case, tmp_path: Path):
    trainer = case.partition(",")[0]
    config, choices = compose_config([f"training={trainer}", *EVERYWHERE, *CASES[case]])
    json_file = tmp_path / "deepspeed.json"
    json_file.write_text(json.dumps(deepspeed_config(config)))
    words = filled(config, json_file, tmp_path / "out", 1, tmp_path / "data")
    launched = next(index for index, word in enumerate(words) if word.startswith(("run_clm.py", "trl.scripts.")))
    found = parsed(trainer, words[launched + 1 :])
    seen, disagreements = found_in(config, found, choices)
    assert disagreements == []
    wanted = {key for key in given(config) if {key, key.partition(".")[0]} & {*FOUND}}
    assert wanted - seen.keys() == set()
    assert found["torch_empty_cache_steps"] == 4
    assert str(tmp_path / "data") in (found["dataset_name"], str(Path(found.get("train_file") or "").parent))


def test_accelerate_starts_fsdp2_as_composed():
    from accelerate.commands.launch import launch_command_parser

    config, _ = compose_config(["training=accelerate_fsdp2", *EVERYWHERE, "zero_stage=zero3", "hardware.gpus=4"])
    launcher = launch_command_parser().parse_args(filled(config, Path("json"), Path("out"), 29501)[2:])
    assert (launcher.use_fsdp, launcher.fsdp_version, launcher.num_processes) == (True, "2", 4)
    assert (launcher.fsdp_reshard_after_forward, launcher.mixed_precision) == ("true", "bf16")
    assert (launcher.module, launcher.training_script) == (True, "trl.scripts.sft")
