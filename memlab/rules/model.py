"""Rules of the model and its data: adapters, kernels, weights, position embeddings."""

from math import inf
from typing import Any

from memlab.core.config import Config
from memlab.rules.rule import Rule, changed, has_changed

LIGER_FAMILIES: tuple[str, ...] = (
    # Source: MODEL_TYPE_TO_APPLY_LIGER_FN in liger_kernel/transformers/monkey_patch.py of liger-kernel 0.8.5, language
    # models only.
    *("deepseek_v2", "deepseek_v3", "deepseek_v4", "exaone4", "falcon_h1", "gemma", "gemma2", "gemma3_text"),
    *("gemma4_text", "glm4", "gpt_oss", "granite", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama", "llama4_text"),
    *("ministral", "mistral", "mixtral", "muse_glimmer", "nemotron", "olmo2", "olmo3", "phi3", "qwen2", "qwen3"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "smollm3"),
)
"""Values of ``model_type`` for which liger-kernel has kernels."""


def _known(config: Config) -> dict[str, Any]:
    """Return the Hugging Face configuration as far as it is known: without what only the model's config.json has."""
    return config.model.config | config.model.overrides


RULES = (
    Rule(
        lambda c: c.adapter.method == "none" and changed(c.adapter, but=("method",)),
        "all weights are trained, so the other adapter.* values have no effect",
        "adapter=lora or adapter=qlora, or leave the other adapter.* values out",
    ),
    Rule(
        lambda c: c.adapter.method == "lora" and has_changed(c.adapter, "quant_type", "double_quant", "quant_storage"),
        "adapter.quant_type, adapter.double_quant and adapter.quant_storage belong to weights in 4 bits",
        "adapter=qlora, or leave them out",
    ),
    Rule(
        lambda c: c.kernels.implementation == "liger" and c.hardware.device == "cpu",
        "liger-kernel's Triton kernels run on GPUs only",
        "kernels=none",
    ),
    Rule(
        lambda c: c.kernels.implementation == "liger" and _known(c).get("model_type") not in (None, *LIGER_FAMILIES),
        "liger-kernel has no kernels for this model's family and would leave it as it is",
        "kernels=none, or a model of another family (llama, mistral, qwen2, qwen3, gemma2, phi3, ...)",
    ),
    Rule(
        lambda c: c.data.source == "jsonl" and not c.data.path,
        "data=jsonl needs a file",
        "data.path=<file with one JSON object a line>",
    ),
    Rule(
        lambda c: c.model.weights == "pretrained" and c.model.path == "memlab/tiny",
        "model=tiny has no published weights",
        "model.weights=random, or another model",
    ),
    Rule(
        lambda c: _known(c).get("model_type") == "gpt2" and c.seq_len.tokens > _known(c).get("n_positions", inf),
        "the model has learned position embeddings for fewer tokens than seq_len.tokens",
        "a shorter seq_len, or model.overrides.n_positions=<tokens>",
    ),
)
