"""Low-rank adapters (LoRA with peft), and frozen 4-bit base weights below them (QLoRA).

Imported only if a run has an adapter: peft and bitsandbytes are optional.
"""

import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import set_quantized_state

from memlab.core.config import Adapter, Checkpointing

STORAGE_DTYPES = {"uint8": torch.uint8, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def add_adapter(model: PreTrainedModel, adapter: Adapter, checkpointing: Checkpointing) -> PeftModel:
    """Freeze the weights of the model and add adapters, prepared as in TRL's SFTTrainer.

    peft creates the adapters in fp32. DeepSpeed's engine casts the adapters to the dtype of the run, except if the
    weights were built under zero.Init.
    """
    if adapter.method == "qlora":
        model = prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=checkpointing.enabled,
            gradient_checkpointing_kwargs={"use_reentrant": checkpointing.reentrant},
        )
    elif checkpointing.enabled and checkpointing.reentrant:
        # A reentrant checkpoint needs an input that requires gradients; the output of frozen embeddings does not.
        model.enable_input_require_grads()
    targets = adapter.target_modules
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
    )
    return get_peft_model(model, lora)


def quantization(adapter: Adapter, dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return the settings for 4-bit weights of the linear layers, with matrix products in ``dtype``."""
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=adapter.quant_type,
        bnb_4bit_use_double_quant=adapter.double_quant,
        bnb_4bit_quant_storage=STORAGE_DTYPES[adapter.quant_storage],
        bnb_4bit_compute_dtype=dtype,
    )


def build_quantized(
    hf_config: PretrainedConfig, wanted: BitsAndBytesConfig, device: torch.device, **options
) -> PreTrainedModel:
    """Build a model with random 4-bit weights on ``device``, in the way ``from_pretrained`` loads them.

    The model is built on the meta device. At most one of its weights exists unquantized at a time. As with any
    quantized model, zero.Init does not partition the weights: ZeRO-3 partitions them when the engine starts.
    """
    from transformers.integrations import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert

    with torch.device("meta"), set_quantized_state():
        model = AutoModelForCausalLM.from_config(hf_config, **options)
    model = replace_with_bnb_linear(model, get_keys_to_not_convert(model), wanted)
    made: dict[int, torch.nn.Parameter] = {}  # tied weights are one parameter in two modules
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    made[id(parameter)] = _on_device(parameter, device, hf_config)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    model.initialize_weights()
    model.is_loaded_in_4bit = True  # peft requires it
    return model


def _on_device(parameter: torch.nn.Parameter, device: torch.device, hf_config: PretrainedConfig) -> torch.nn.Parameter:
    """Allocate a meta parameter on ``device``: a 4-bit weight with random values, any other one uninitialised."""
    values = torch.empty_like(parameter.data, device=device)
    if not hasattr(parameter, "quant_state"):
        return torch.nn.Parameter(values, requires_grad=parameter.requires_grad)
    values.normal_(std=getattr(hf_config, "initializer_range", 0.02))
    quantized = type(parameter)(values, requires_grad=False, **parameter.__dict__).to(device)
    quantized._is_hf_initialized = True
    return quantized
