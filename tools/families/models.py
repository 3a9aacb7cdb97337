"""The families of causal language models in the installed transformers, each as a model of a few layers."""

from collections.abc import Iterable
from typing import Any

import transformers
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tools.families.attempts import ModelFamily

LAYERS = 2
"""Minimum number of layers. Widths keep their defaults: fake tensors need no memory."""


OWN_LAYERS = {"num_hidden_layers": None}

OVERRIDES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "prophetnet": {**OWN_LAYERS, "num_encoder_layers": LAYERS, "num_decoder_layers": LAYERS},
    "reformer": {"is_decoder": True, "axial_pos_shape": [8, 8]},
    "xmod": {"default_language": "en_XX"},
    "zamba": OWN_LAYERS,
    "zamba2": OWN_LAYERS,
}
"""Configuration values for families whose defaults cannot be built, or not with fewer layers. ``None``: keep the
default value."""


def all_families() -> list[str]:
    """The model types of AutoModelForCausalLM, in alphabetical order."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def model_families(names: Iterable[str]) -> list[ModelFamily]:
    """Families of the model types ``names``, with the defaults of transformers except for the number of layers."""
    transformers.logging.set_verbosity_error()  # hides warnings about inconsistent defaults, which users cannot change
    return [_model_family(name) for name in names]


def _model_family(name: str) -> ModelFamily:
    models = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]
    model = models if isinstance(models, str) else models[0]
    try:
        values = {**_fewer_layers(AutoConfig.for_model(name)), **OVERRIDES.get(name, {})}
        config = {"model_type": name, **{key: value for key, value in values.items() if value is not None}}
        has_sdpa = getattr(transformers, model)._supports_sdpa
    except Exception as error:  # transformers raises many types
        return ModelFamily(name, model, reason=f"{type(error).__name__}: {error}")
    return ModelFamily(name, model, config, "sdpa" if has_sdpa else "eager")


def _fewer_layers(config: PretrainedConfig) -> dict[str, Any]:
    """Overrides that reduce a model and each of its parts to ``LAYERS`` layers, or to as many as include every kind."""
    values = {}
    if isinstance(getattr(config, "num_hidden_layers", None), int):
        kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
        values["num_hidden_layers"] = max(LAYERS, *(kinds.index(kind) + 1 for kind in set(kinds)), 0)
    for name in type(config).sub_configs:
        part = getattr(config, name, None)
        if fewer := _fewer_layers(part) if part is not None else {}:
            values[name] = fewer
    return values
