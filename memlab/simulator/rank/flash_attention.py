"""The call of torch's flash kernel, which ``scaled_dot_product_attention`` and flash-attn share."""

import torch


def flash(query, key, value, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    """Call the flash kernel, with the head size padded to a multiple of 8 as in torch."""
    head = query.shape[-1]
    padding = -head % 8
    if padding:
        scale = scale or head**-0.5
        query, key, value = (torch.nn.functional.pad(tensor, (0, padding)) for tensor in (query, key, value))
    op = torch.ops.aten._scaled_dot_product_flash_attention
    out = op(query, key, value, dropout_p, is_causal, scale=scale)[0]
    return out[..., :head] if padding else out
