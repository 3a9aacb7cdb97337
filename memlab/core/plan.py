"""Plan of a run, made from its configuration: everything that the run needs, as plain data.

All functions are pure: they read no file, no environment variable and nothing of the machine. So a plan made on a
laptop is the plan that runs on the GPUs. The DeepSpeed JSON contains every value that changes memory, without
``"auto"`` (which works only through transformers) and without values left to DeepSpeed's defaults. So the JSON works in
any script, and a diff of two runs shows what differs.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from memlab.core.config import Config, Offload, Precision, ZeroStage, to_dict, without
from memlab.core.optimizers import DEEPSPEED, TORCH_ADAM
from memlab.core.schema import PlainOf

NOT_MEASURED = ("name", "force", "predict", "sweep", "measure.timeout_s", "measure.repeats", "hardware.hostfile")
"""Keys that do not change what is measured, so they are left out of the hash of a run."""

SHAPE = ("seq_len.tokens", "batch.micro")
"""Keys that may differ between the points of one launch: they change the data, not the engine."""

LATER_GROUPS = {"adapter": "none", "kernels": "none", "training": "memlab"}
"""Groups that older records lack -> the option that they stand for, whose values are the group's defaults. Defaults are
left out of the hash, so the names of older run folders stay valid."""

LATER_KEYS = {"measure.protocol": "steps"}
"""Single keys that older records lack -> their defaults, which are also left out of the hash."""

UNREMARKABLE = frozenset({"none", "default", "bf16", "sdpa", "AdamW", "random", "memlab"})
"""Common values, which are left out of the names of run folders."""

STAGE3_ONLY = (
    "sub_group_size",
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
    "memory_efficient_linear",
    "pipeline_loading_checkpoint",
    "override_module_apply",
    "log_trace_cache_warnings",
    "enable_sanity_checks",
    "save_muon_momentum_buffer_in_memory",
    "leaf_module",
)
"""Keys of ``zero_optimization`` that DeepSpeed reads only at stage 3, besides all keys that begin with ``stage3_``."""

STAGE12_ONLY = ("compute_grad_norm", "round_robin_gradients", "parameter_alignment", "use_multi_rank_bucket_allreduce")
"""Keys of ``zero_optimization`` that DeepSpeed reads only at stages 1 and 2."""


@dataclass(frozen=True)
class Plan:
    """One experiment, ready to run.

    ``deepspeed`` is the DeepSpeed JSON. ``training_args`` holds the keyword arguments of
    ``transformers.TrainingArguments``. ``environment`` holds environment variables that must be set in the ranks before
    torch is imported. ``world_size`` is the number of ranks. ``unknown_config``: groups and dotted keys of ``config``
    that only a command of the user's own decides.
    """

    run_id: str
    config: Annotated[Config, PlainOf(dict[str, Any])]
    choices: dict[str, str]
    world_size: int
    deepspeed: dict[str, Any]
    training_args: dict[str, Any]
    environment: dict[str, str]
    unknown_config: list[str] = field(default_factory=list)

    @property
    def ranks_per_node(self) -> int:
        return self.config.hardware.gpus

    @property
    def is_multi_node(self) -> bool:
        return self.config.hardware.nodes > 1

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        return {**values, "config": without(values["config"], self.unknown_config)}


def make_plan(config: Config, choices: dict[str, str]) -> Plan:
    """Make the plan of a configuration. ``choices`` maps each group to the chosen option."""
    return Plan(
        run_id=run_id(config),
        config=config,
        choices=dict(choices),
        world_size=config.hardware.world_size,
        deepspeed=deepspeed_config(config),
        training_args=training_arguments(config),
        environment=environment(config),
    )


# --- identity ---------------------------------------------------------------------------------------------------------


def run_id(config: Config, unknown: Collection[str] = ()) -> str:
    """Name the run folder: ``<main settings>-<hash of the resolved configuration>``.

    Only values count: an option, and the same values typed one by one, give the same name and so the same run folder.
    ``unknown``: groups and dotted keys that are not known; the name leaves them out.
    """
    return f"{_slug(config, unknown)}-{config_hash(config, unknown)}"


def config_hash(config: Config, unknown: Collection[str] = ()) -> str:
    """Hash everything that can change what is measured; eight hexadecimal digits. ``unknown`` as in :func:`run_id`."""
    return _hash_without(config, (*NOT_MEASURED, *unknown))


def shape_of(config: Config) -> tuple[int, int]:
    """Return (micro batch, tokens), which may differ between the points of one launch."""
    return config.batch.micro, config.seq_len.tokens


def engine_key(config: Config) -> str:
    """Return a key that is equal for configurations that can be measured in one launch."""
    return _hash_without(config, NOT_MEASURED + SHAPE)


def memory_key(config: Config) -> str:
    """Return a key that is equal for configurations that need the same memory at the same shape."""
    return _hash_without(config, (*NOT_MEASURED, *SHAPE, "measure.repeat"))


def subject_key(config: Config) -> str:
    """Return a key that is equal for repeats of the same experiment."""
    return _hash_without(config, (*NOT_MEASURED, "measure.repeat"))


def _hash_without(config: Config, keys: Iterable[str]) -> str:
    values = to_dict(config)
    later = [group for group in LATER_GROUPS if getattr(config, group) == getattr(Config(), group)]
    later += [key for key, absent in LATER_KEYS.items() if _value(values, key) == absent]
    identity = without(values, [*keys, *later])
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def _slug(config: Config, unknown: Collection[str]) -> str:
    offload, batch, adapter, hardware = config.offload, config.batch, config.adapter, config.hardware
    parts = {
        "model.path": config.model.path.rstrip("/").split("/")[-1],
        "training.loop": config.training.loop,
        "zero_stage.stage": f"zero{config.zero_stage.stage}",
        "offload.optimizer": _offload_word(offload),
        "allocator.conf": _allocator_word(config.allocator.conf),
        "checkpointing.enabled": "checkpointing" if config.checkpointing.enabled else "none",
        "seq_len.tokens": f"s{config.seq_len.tokens}",
        "batch.micro": f"b{batch.micro}",
        "batch.accumulation": f"x{batch.accumulation}" if batch.accumulation > 1 else "none",
        "precision.dtype": config.precision.dtype,
        "attention.implementation": config.attention.implementation,
        "optimizer.name": config.optimizer.name,
        "adapter.method": f"{adapter.method}{adapter.rank}" if adapter.method != "none" else "none",
        "kernels.implementation": config.kernels.implementation,
        "data.source": config.data.source,
        "hardware.nodes": f"{hardware.nodes}nodes" if hardware.nodes > 1 else "none",
        "hardware.gpus": f"{hardware.gpus}x{hardware.gpu.removeprefix('NVIDIA ') or hardware.device}",
        "measure.repeat": f"r{config.measure.repeat}" if config.measure.repeat > 1 else "none",
        "mode": "predicted" if config.mode == "predict" else "none",
    }
    known = [part for key, part in parts.items() if not {key, key.partition(".")[0]} & set(unknown)]
    words = [re.sub(r"[^A-Za-z0-9_.]+", "_", part) for part in known if part not in UNREMARKABLE]
    return "-".join(words)[:150]


def _offload_word(offload: Offload) -> str:
    """Name the offload like the option of the group, if there is one: none, optimizer, param_nvme, all, ..."""
    places = {"optimizer": offload.optimizer, "param": offload.param}
    if offload.optimizer == offload.param != "none":
        places = {"all": offload.optimizer}
    words = [name if place == "cpu" else f"{name}_{place}" for name, place in places.items() if place != "none"]
    return "_and_".join(words) or "none"


def _allocator_word(conf: str) -> str:
    if not conf:
        return "default"
    return "expandable" if conf == "expandable_segments:True" else "allocator"


def _value(values: dict[str, Any], dotted: str) -> Any:
    for key in dotted.split("."):
        values = values[key]
    return values


# --- DeepSpeed --------------------------------------------------------------------------------------------------------


def deepspeed_config(config: Config) -> dict[str, Any]:
    """Make the DeepSpeed JSON: it has no ``"auto"`` and leaves no value that changes memory to DeepSpeed's defaults."""
    precision, optimizer = config.precision, config.optimizer
    ds: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config.batch.micro,
        "gradient_accumulation_steps": config.batch.accumulation,
        "gradient_clipping": optimizer.gradient_clipping,
        **_precision_blocks(precision),
        "communication_data_type": precision.communication_dtype or precision.dtype,
        "data_types": {"grad_accum_dtype": precision.grad_accum_dtype or precision.dtype},
        "zero_optimization": _zero_optimization(config.zero_stage, config.offload),
        # Both would disturb the measurement: the first synchronises every phase, the second resets torch's peaks.
        "wall_clock_breakdown": False,
        "memory_breakdown": False,
    }
    if optimizer.source == "deepspeed":
        ds["optimizer"] = {"type": optimizer.name, "params": _optimizer_params(config)}
    else:
        ds["zero_allow_untested_optimizer"] = True
    if optimizer.source != "deepspeed" or config.hardware.device == "cpu":
        ds["zero_force_ds_cpu_optimizer"] = False
    if config.training.loop == "command" and config.training.auto:
        _leave_to_transformers(ds, precision)
    return ds


def _leave_to_transformers(ds: dict[str, Any], precision: Precision) -> None:
    """Write ``"auto"`` where transformers takes the value from the script's TrainingArguments, and checks any other.

    Source: ``HfTrainerDeepSpeedConfig.trainer_config_process`` of transformers 5.23.
    """
    ds |= dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto")
    ds |= {name: {**ds[name], "enabled": "auto"} for name in ("bf16", "fp16")}
    if precision.communication_dtype is None:
        del ds["communication_data_type"]
    if precision.grad_accum_dtype is None:
        del ds["data_types"]
    if "optimizer" in ds:
        ds["optimizer"]["params"] |= {key: "auto" for key in ds["optimizer"]["params"] if key in ARGUMENTS_OF_OPTIMIZER}


ARGUMENTS_OF_OPTIMIZER = ("lr", "betas", "eps", "weight_decay")
"""Hyperparameters that TrainingArguments have too."""


def _optimizer_params(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of DeepSpeed's optimizer, only those that it accepts."""
    optimizer, name = config.optimizer, config.optimizer.name.lower()
    given = {"betas": list(optimizer.betas), "eps": optimizer.eps}
    params = {
        "lr": optimizer.lr,
        **{key: given[key] for key in DEEPSPEED[name]},
        "weight_decay": optimizer.weight_decay,
    }
    if config.hardware.device == "cpu" and name in TORCH_ADAM:
        params["torch_adam"] = True
    return params


def _precision_blocks(precision: Precision) -> dict[str, Any]:
    blocks: dict[str, Any] = {
        "bf16": {"enabled": precision.dtype == "bf16"},
        "fp16": {"enabled": precision.dtype == "fp16"},
    }
    if precision.dtype == "bf16":
        blocks["bf16"] |= {
            "bf16_master_weights_and_grads": precision.bf16_master_weights_and_grads,
            "bf16_optimizer_states": precision.bf16_optimizer_states,
            "immediate_grad_update": precision.immediate_grad_update,
        }
    if precision.dtype == "fp16":
        blocks["fp16"] |= {
            "loss_scale": precision.loss_scale,
            "initial_scale_power": precision.initial_scale_power,
        }
    return blocks


def _zero_optimization(zero: ZeroStage, offload: Offload) -> dict[str, Any]:
    if zero.stage == 0:
        return {"stage": 0}
    block = {key: value for key, value in asdict(zero).items() if applies(key, zero.stage) and value != {}}
    block["overlap_comm"] = zero.stage == 3 if zero.overlap_comm is None else zero.overlap_comm
    if offload.optimizer != "none":
        block["offload_optimizer"] = {
            "device": offload.optimizer,
            "pin_memory": offload.pin_memory,
            "buffer_count": offload.optimizer_buffer_count,
            "fast_init": offload.fast_init,
            "pipeline_read": offload.pipeline_read,
            "pipeline_write": offload.pipeline_write,
            "ratio": offload.ratio,
            "super_offload": offload.super_offload,
            "cpuadam_cores_perc": offload.cpuadam_cores_perc,
            **({"nvme_path": offload.nvme_path} if offload.optimizer == "nvme" else {}),
        }
    if offload.param != "none":
        block["offload_param"] = {
            "device": offload.param,
            "pin_memory": offload.pin_memory,
            "buffer_count": offload.param_buffer_count,
            "buffer_size": offload.param_buffer_size,
            "max_in_cpu": offload.max_in_cpu,
            **({"nvme_path": offload.nvme_path} if offload.param == "nvme" else {}),
        }
    return block


def applies(zero_key: str, stage: int) -> bool:
    """Whether DeepSpeed reads this key of ``zero_optimization`` at this stage."""
    if zero_key == "stage":
        return True
    if zero_key.startswith("stage3_") or zero_key in STAGE3_ONLY:
        return stage == 3
    if zero_key in STAGE12_ONLY:
        return stage in (1, 2)
    return stage > 0


# --- transformers -----------------------------------------------------------------------------------------------------


def training_arguments(config: Config) -> dict[str, Any]:
    """Make the arguments of ``transformers.TrainingArguments``; ``deepspeed`` names the JSON file in the run folder."""
    optimizer, checkpointing = config.optimizer, config.checkpointing
    arguments: dict[str, Any] = {
        "output_dir": "trainer",
        "deepspeed": "deepspeed.json",
        "per_device_train_batch_size": config.batch.micro,
        "gradient_accumulation_steps": config.batch.accumulation,
        "max_steps": config.measure.warmup + config.measure.steps,
        "learning_rate": optimizer.lr,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.gradient_clipping,
        "lr_scheduler_type": "constant",
        "bf16": config.precision.dtype == "bf16",
        "fp16": config.precision.dtype == "fp16",
        "gradient_checkpointing": checkpointing.enabled,
        "seed": config.seed,
        # The loop only trains: no logging, saving or reporting. Trainer keeps NaN losses instead of filtering them out.
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_nan_inf_filter": False,
        "remove_unused_columns": False,
    }
    if checkpointing.enabled:
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": checkpointing.reentrant}
    if config.kernels.implementation == "liger":
        arguments["use_liger_kernel"] = True
    if optimizer.source == "transformers":
        arguments["optim"] = optimizer.name
    if config.hardware.device == "cpu":
        arguments["use_cpu"] = True
    return arguments


# --- environment ------------------------------------------------------------------------------------------------------


def environment(config: Config) -> dict[str, str]:
    """Return the environment variables of the ranks. They must be set before torch is imported."""
    variables = {"DS_ACCELERATOR": config.hardware.device, "TOKENIZERS_PARALLELISM": "false"}
    if config.allocator.conf:
        # torch has two names for it: the second is documented, but some releases read some options from the first.
        variables["PYTORCH_CUDA_ALLOC_CONF"] = config.allocator.conf
        variables["PYTORCH_ALLOC_CONF"] = config.allocator.conf
    if not needs_hub(config):
        variables["HF_HUB_OFFLINE"] = "1"
    return variables


def needs_hub(config: Config) -> bool:
    """Whether the run may ask the Hugging Face hub for a configuration, weights, a tokenizer or a data set."""
    model_from_hub = config.model.weights == "pretrained" or not config.model.config
    tokenizer_from_hub = config.data.source in ("guanaco", "jsonl")
    return model_from_hub or tokenizer_from_hub
