"""Words of TrainingArguments, DeepSpeed, accelerate, TRL, peft and the launchers, with the words here that mean the
same. docs/howto/words.md shows them as tables; a test holds both to what memlab composes."""

from dataclasses import asdict, fields

from memlab.core.config import Config
from memlab.core.config_training import Checkpointing, ZeroStage

Here = str | dict[str, str]
"""Words here: with ``{}`` in the place of the value, or for each value that the foreign word can have."""

PRECISION = {"true": "precision=bf16", "false": "precision=fp32"}
CHECKPOINTING = {"true": "checkpointing=full", "false": "checkpointing=none"}
OFFLOADED = {"cpu": "offload=optimizer", "nvme": "offload=optimizer_nvme", "none": "offload=none"}
OFFLOADED_PARAM = {"cpu": "offload=param", "nvme": "offload.param=nvme", "none": "offload.param=none"}
DTYPE = {"bfloat16": "precision=bf16", "float16": "precision=fp16", "float32": "precision=fp32"}
REENTRANT = "checkpointing=full checkpointing.reentrant={}"
MODEL = "model=hf model.path={}"
TOKENS = "seq_len.tokens={}"

OF_TRAINING_ARGUMENTS: dict[str, Here] = {
    "per_device_train_batch_size": "batch.micro={}",
    "gradient_accumulation_steps": "batch.accumulation={}",
    "bf16": PRECISION,
    "fp16": {**PRECISION, "true": "precision=fp16"},
    "gradient_checkpointing": CHECKPOINTING,
    "activation_checkpointing": CHECKPOINTING,
    "gradient_checkpointing_kwargs.use_reentrant": REENTRANT,
    "activation_checkpointing_kwargs.use_reentrant": REENTRANT,
    "optim": "optimizer.source=transformers optimizer.name={}",
    "learning_rate": "optimizer.lr={}",
    "weight_decay": "optimizer.weight_decay={}",
    "adam_beta1": "optimizer.betas=[{},0.999]",
    "adam_beta2": "optimizer.betas=[0.9,{}]",
    "adam_epsilon": "optimizer.eps={}",
    "max_grad_norm": "optimizer.gradient_clipping={}",
    "use_liger_kernel": {"true": "kernels=liger", "false": "kernels=none"},
    "max_steps": "measure.steps={}",
    "num_train_epochs": "measure.steps=<steps>",
    "seed": "seed={}",
    "use_cpu": {"true": "hardware=cpu", "false": "hardware=auto"},
    "output_dir": "hydra.run.dir={}",
}

OF_DEEPSPEED: dict[str, Here] = {
    "train_micro_batch_size_per_gpu": "batch.micro={}",
    "train_batch_size": "batch.micro=<samples of one GPU>",
    "gradient_accumulation_steps": "batch.accumulation={}",
    "gradient_clipping": "optimizer.gradient_clipping={}",
    "bf16.enabled": PRECISION,
    **{
        f"bf16.{key}": f"precision.{key}={{}}"
        for key in ("bf16_master_weights_and_grads", "bf16_optimizer_states", "immediate_grad_update")
    },
    "fp16.enabled": {**PRECISION, "true": "precision=fp16"},
    "fp16.loss_scale": "precision=fp16 precision.loss_scale={}",
    "fp16.initial_scale_power": "precision=fp16 precision.initial_scale_power={}",
    "communication_data_type": "precision.communication_dtype={}",
    "data_types.grad_accum_dtype": "precision.grad_accum_dtype={}",
    "optimizer.type": "optimizer.source=deepspeed optimizer.name={}",
    **{f"optimizer.params.{key}": f"optimizer.{key}={{}}" for key in ("lr", "betas", "eps", "weight_decay")},
    **{f"zero_optimization.{field.name}": f"zero_stage.{field.name}={{}}" for field in fields(ZeroStage)},
    "zero_optimization.stage": "zero_stage=zero{}",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "zero_stage.stage3_gather_16bit_weights_on_model_save={}"
    ),
    "zero_optimization.cpu_offload": {"true": "offload=optimizer", "false": "offload=none"},
    "zero_optimization.cpu_offload_param": {"true": "offload=param", "false": "offload.param=none"},
    "zero_optimization.cpu_offload_use_pin_memory": "offload.pin_memory={}",
    "zero_optimization.offload_optimizer.device": OFFLOADED,
    "zero_optimization.offload_optimizer.buffer_count": "offload.optimizer_buffer_count={}",
    **{
        f"zero_optimization.offload_optimizer.{key}": f"offload.{key}={{}}"
        for key in (
            *("pin_memory", "nvme_path", "fast_init", "pipeline_read", "pipeline_write", "ratio", "super_offload"),
            "cpuadam_cores_perc",
        )
    },
    "zero_optimization.offload_param.device": OFFLOADED_PARAM,
    "zero_optimization.offload_param.buffer_count": "offload.param_buffer_count={}",
    "zero_optimization.offload_param.buffer_size": "offload.param_buffer_size={}",
    **{f"zero_optimization.offload_param.{key}": f"offload.{key}={{}}" for key in ("pin_memory", "nvme_path")},
    "zero_optimization.offload_param.max_in_cpu": "offload.max_in_cpu={}",
    **{
        f"activation_checkpointing.{field.name}": f"checkpointing.{field.name}={{}}"
        for field in fields(Checkpointing)
        if field.name not in ("enabled", "reentrant")
    },
}

ELSEWHERE: dict[str, Here] = {
    **dict.fromkeys(("model_name_or_path", "pretrained_model_name_or_path", "model_name", "model_id"), MODEL),
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len", "model_max_length", "cutoff_len"), TOKENS),
    **dict.fromkeys(("batch_size", "micro_batch_size", "per_device_batch_size"), "batch.micro={}"),
    **dict.fromkeys(("num_processes", "nproc_per_node", "num_gpus"), "hardware.gpus={}"),
    **dict.fromkeys(("num_machines", "nnodes", "num_nodes"), "hardware.nodes={}"),
    **dict.fromkeys(("dtype", "torch_dtype"), DTYPE),
    **dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "allocator.conf={}"),
    "num_hidden_layers": "model.overrides.num_hidden_layers={}",
    "attn_implementation": "attention.implementation={}",
    "mixed_precision": {"bf16": "precision=bf16", "fp16": "precision=fp16", "no": "precision=fp32"},
    "stage": "zero_stage=zero{}",
    "offload_optimizer_device": OFFLOADED,
    "offload_param_device": OFFLOADED_PARAM,
    "use_peft": {"true": "adapter=lora", "false": "adapter=none"},
    "load_in_4bit": {"true": "adapter=qlora", "false": "adapter=none"},
    **{f"lora_{key}": f"adapter=lora adapter.{key}={{}}" for key in ("alpha", "dropout", "target_modules")},
    "lora_r": "adapter=lora adapter.rank={}",
    "bnb_4bit_quant_type": "adapter=qlora adapter.quant_type={}",
}
"""Words of accelerate, of from_pretrained, TRL and peft, of the launchers, and of the environment."""


def foreign_word(key: str, value: str = "<value>") -> str | None:
    """Return the words here for ``key=value`` of another library or launcher; ``None`` for a word that none has.

    ``value``: as typed, also several with commas between them. A field of memlab's without its group counts too.
    """
    name = key.rpartition(".")[2]
    tables = (OF_TRAINING_ARGUMENTS, OF_DEEPSPEED, ELSEWHERE)
    found = [table[each] for each in (key, name) for table in tables if each in table]
    if not found:
        owners = [group for group, values in asdict(Config()).items() if isinstance(values, dict) and name in values]
        return " or ".join(f"{group}.{name}={value}" for group in owners) or None
    return in_words_here(found[0], value)


def in_words_here(here: Here, value: str) -> str:
    """Write words here for a value: ``zero_stage=zero{}`` and ``2,3`` -> ``zero_stage=zero2,zero3``."""
    if isinstance(here, str):
        head, _, form = here.rpartition("=")
        return f"{head}={','.join(form.format(each) for each in value.split(','))}"
    return here.get(value.lower()) or " or ".join(dict.fromkeys(here.values()))
