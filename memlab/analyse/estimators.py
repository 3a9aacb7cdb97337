"""Formulas of the public memory estimators of DeepSpeed and accelerate, to compare with a measured point.

DeepSpeed's two estimators cover model states only, by their own documentation. Accelerate's estimator is for the whole
model on one device and ignores ZeRO. Neither library's takes batch, sequence length, checkpointing or the allocator
into account. The formulas are copied, so that neither library is imported.
"""

from collections.abc import Mapping
from typing import Any

from memlab.analyse.run_view import RunView, value_at


def zero3_model_states_bytes(
    parameters: int, largest_layer: int, gpus: int, offload_optimizer: bool, offload_param: bool
) -> int:
    """Estimate the bytes on each GPU at ZeRO stage 3. Source: ``estimate_zero3_model_states_mem_needs`` in
    ``deepspeed/runtime/zero/stage3.py`` of DeepSpeed 0.19.8, with its defaults and one node.

    Without offload, a parameter takes 18 bytes. As in DeepSpeed's function, the offload of parameters counts only
    together with the offload of the optimizer.
    """
    largest = 4 * largest_layer
    if offload_optimizer and offload_param:
        return largest
    bytes_per_parameter = 2 if offload_optimizer else 18
    return largest + int(bytes_per_parameter * parameters / gpus)


def zero2_model_states_bytes(parameters: int, gpus: int, offload_optimizer: bool) -> int:
    """Estimate the bytes on each GPU at ZeRO stage 2. Source: ``estimate_zero2_model_states_mem_needs`` in
    ``deepspeed/runtime/zero/stage_1_and_2.py`` of DeepSpeed 0.19.8, with its defaults and one node."""
    return 2 * parameters if offload_optimizer else 2 * parameters + int(18 * parameters / gpus)


def accelerate_bytes(parameters: int, dtype: str) -> int:
    """Estimate the bytes for training with Adam on one device. Source: ``estimate_training_usage`` in
    ``accelerate/commands/estimate.py`` of accelerate 1.15; the largest quantity, as in accelerate's table."""
    fp32 = 4 * parameters
    return 4 * fp32 if dtype == "fp32" else 2 * fp32


def largest_layer_parameters(model_config: Mapping[str, Any]) -> int | None:
    """Count the parameters of a decoder's largest single module, as DeepSpeed's estimator does; ``None`` if unknown.

    The largest module is the embedding (vocabulary x hidden) or one matrix of the feed-forward block (hidden x
    intermediate). The sizes are taken from the Hugging Face configuration.
    """
    hidden, vocabulary = model_config.get("hidden_size"), model_config.get("vocab_size")
    if not isinstance(hidden, int) or not isinstance(vocabulary, int):
        return None
    intermediate = model_config.get("intermediate_size")
    return hidden * max(vocabulary, intermediate if isinstance(intermediate, int) else 0)


def deepspeed_estimate(run: RunView) -> int | None:
    """Return DeepSpeed's estimate for a run, in bytes; ``None`` without a formula or without parameter counts."""
    parameters, gpus = run.summary.get("parameters"), value_at(run.config, "hardware.gpus")
    if not parameters or not gpus:
        return None
    offload_optimizer = value_at(run.config, "offload.optimizer") not in (None, "none")
    stage = value_at(run.config, "zero_stage.stage")
    if stage == 2:
        return zero2_model_states_bytes(parameters, gpus, offload_optimizer)
    parts = (value_at(run.config, f"model.{key}") for key in ("config", "overrides"))
    layer = largest_layer_parameters({key: value for part in parts for key, value in (part or {}).items()})
    if stage != 3 or layer is None:
        return None
    offload_param = value_at(run.config, "offload.param") not in (None, "none")
    return zero3_model_states_bytes(parameters, layer, gpus, offload_optimizer, offload_param)


def accelerate_estimate(run: RunView) -> int | None:
    """Return accelerate's estimate for the model of a run, in bytes; ``None`` if the parameters were not counted."""
    parameters = run.summary.get("parameters")
    dtype = value_at(run.config, "precision.dtype")
    return accelerate_bytes(parameters, dtype) if parameters and dtype else None
