"""Model FLOPs of a training step, without recomputation.

A multiplication and an addition count as two FLOPs. Backward costs twice the forward: one product for the gradient of
the input and one for the gradient of the weight. Frozen weights have no weight gradient. Attention counts the full
score matrix, as in PaLM's definition of model FLOP utilisation (Chowdhery et al. 2022, appendix B). Element-wise
operations are not counted.
"""

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from memlab.meters.facts.models import parameter_size

ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
"""The kinds of layers (transformers' ``config.layer_types``) that multiply queries with keys."""


def model_flops(model: PreTrainedModel, batch: int, tokens: int) -> float:
    """Compute the FLOPs of one forward and backward of ``batch`` samples of ``tokens`` tokens through the whole model.

    Raises an exception if the model's configuration lacks the values that the formulas need.
    """
    return batch * (tokens * _matmul_flops_per_token(model) + 3.0 * _attention_flops(model, tokens))


def _matmul_flops_per_token(model: PreTrainedModel) -> float:
    """Compute the FLOPs of matrix products per token, forward and backward. Experts count only if they are active."""
    config = model.config.get_text_config()
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    share = config.num_experts_per_tok / experts if experts else 1.0
    total = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            total += _products(module.weight)
        elif experts and type(module).__name__.endswith("Experts"):
            weights = (p for name, p in module.named_parameters(recurse=False) if not name.endswith("bias"))
            total += share * sum(map(_products, weights))
    return total


def _attention_flops(model: PreTrainedModel, tokens: int) -> float:
    """Compute the forward FLOPs of attention for one sample.

    Each layer has two products (scores, values) of 2 x tokens x tokens x width FLOPs. Raises an exception for a
    configuration without attention heads, or with kinds of layers that are not in ``ATTENTION``.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    if others := sorted({kind for kind in kinds if kind not in ATTENTION}):
        raise ValueError(f"no formula for layers of the kind {', '.join(others)}")
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return config.num_hidden_layers * 4.0 * tokens * tokens * width


def _products(weight: torch.nn.Parameter) -> float:
    """Compute the FLOPs of one token with a weight: output, gradient of the input and, unless frozen, of the weight."""
    return (6.0 if weight.requires_grad else 4.0) * parameter_size(weight)
