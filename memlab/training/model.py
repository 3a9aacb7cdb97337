"""Building of the model of a plan, with the functions of transformers."""

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from memlab.core.config import Config
from memlab.core.errors import ConfigError
from memlab.training.model_config import model_config

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def build_model(config: Config, device: torch.device) -> PreTrainedModel:
    """Build the model in the dtype of the run, with its adapters.

    Random weights are created on the device. At ZeRO stage 3 each rank creates only its shards: transformers builds the
    model under ``deepspeed.zero.Init``. For this the TrainingArguments with the DeepSpeed JSON must be alive.
    """
    options = {
        "dtype": DTYPES[config.precision.dtype],
        "attn_implementation": config.attention.implementation,
        "trust_remote_code": config.model.trust_remote_code,
    }
    hf_config = model_config(config.model)
    if config.kernels.implementation == "liger":
        _check_liger(hf_config.model_type)
    if config.adapter.method == "none":
        return _build(config, hf_config, device, options)
    from memlab.training import adapter

    if config.adapter.method == "qlora":
        wanted = adapter.quantization(config.adapter, options["dtype"])
        if config.model.weights == "pretrained":
            model = _build(config, hf_config, device, {**options, "quantization_config": wanted})
        else:
            model = adapter.build_quantized(hf_config, wanted, device, **options)
    else:
        model = _build(config, hf_config, device, options)
    return adapter.add_adapter(model, config.adapter, config.checkpointing)


def _build(config: Config, hf_config: PretrainedConfig, device: torch.device, options: dict) -> PreTrainedModel:
    if config.model.weights == "pretrained":
        return AutoModelForCausalLM.from_pretrained(config.model.path, config=hf_config, **options)
    if config.zero_stage.stage == 3:
        return AutoModelForCausalLM.from_config(hf_config, **options)
    with device:
        return AutoModelForCausalLM.from_config(hf_config, **options)


def _check_liger(family: str) -> None:
    """Raise :class:`ConfigError` for a family that liger-kernel does not support and would leave unchanged."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as known

    if family not in known:
        raise ConfigError(
            f"kernels=liger: liger-kernel has no kernels for models of the family '{family}'. Use kernels=none."
        )


def base_model(model: torch.nn.Module) -> PreTrainedModel:
    """Return the transformers model without the wrapper of its adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
