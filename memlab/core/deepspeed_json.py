"""DeepSpeed JSON of a configuration.

It contains every value that changes memory, without ``"auto"`` (which works only through transformers) and without
values left to DeepSpeed's defaults. So it works in any script, and a diff of two runs shows what differs.
"""

from dataclasses import asdict
from typing import Any

from memlab.core.config import Config, Offload, Precision, ZeroStage
from memlab.core.config_values import merged
from memlab.core.optimizers import DEEPSPEED, TORCH_ADAM

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
    if config.is_command and config.training.auto:
        _leave_to_transformers(ds, precision)
    return merged(ds, config.deepspeed)


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
    values, name = asdict(config.optimizer), config.optimizer.name.lower()
    params = {key: values[key] for key in ("lr", *DEEPSPEED[name], "weight_decay")}
    if config.hardware.device == "cpu" and name in TORCH_ADAM:
        params["torch_adam"] = True
    return params


OF_DTYPE = {
    "bf16": ("bf16_master_weights_and_grads", "bf16_optimizer_states", "immediate_grad_update"),
    "fp16": ("loss_scale", "initial_scale_power"),
}
"""Block of the JSON -> the keys that it has while it is enabled."""


def _precision_blocks(precision: Precision) -> dict[str, Any]:
    blocks: dict[str, Any] = {name: {"enabled": precision.dtype == name} for name in OF_DTYPE}
    for key in OF_DTYPE.get(precision.dtype, ()):
        blocks[precision.dtype][key] = getattr(precision, key)
    return blocks


def _zero_optimization(zero: ZeroStage, offload: Offload) -> dict[str, Any]:
    if zero.stage == 0:
        return {"stage": 0}
    block = {key: value for key, value in asdict(zero).items() if applies(key, zero.stage) and value != {}}
    block["overlap_comm"] = zero.stage == 3 if zero.overlap_comm is None else zero.overlap_comm
    if offload.optimizer != "none":
        own = ("fast_init", "pipeline_read", "pipeline_write", "ratio", "super_offload", "cpuadam_cores_perc")
        values = {name: getattr(offload, name) for name in own}
        block["offload_optimizer"] = _offloaded(offload, offload.optimizer, offload.optimizer_buffer_count, values)
    if offload.param != "none":
        values = {"buffer_size": offload.param_buffer_size, "max_in_cpu": offload.max_in_cpu}
        block["offload_param"] = _offloaded(offload, offload.param, offload.param_buffer_count, values)
    return block


def _offloaded(offload: Offload, device: str, buffer_count: int, values: dict[str, Any]) -> dict[str, Any]:
    """Return the block of the optimizer or of the parameters. ``values``: those that it alone has."""
    nvme = {"nvme_path": offload.nvme_path} if device == "nvme" else {}
    return {"device": device, "pin_memory": offload.pin_memory, "buffer_count": buffer_count, **values, **nvme}


def applies(zero_key: str, stage: int) -> bool:
    """Whether DeepSpeed reads this key of ``zero_optimization`` at this stage."""
    if zero_key == "stage":
        return True
    if zero_key.startswith("stage3_") or zero_key in STAGE3_ONLY:
        return stage == 3
    return stage in (1, 2) if zero_key in STAGE12_ONLY else stage > 0
