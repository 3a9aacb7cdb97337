"""Attention as CUDA would compute it: which kernel is picked, what it saves for backward, which scratch memory it takes."""

import torch

from memlab.predict.shadow import device


def install(recorder) -> None:
    torch.nn.functional.scaled_dot_product_attention = sdpa


def stand_in_for(implementation: str) -> str:
    return implementation


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)
    return out[0]
