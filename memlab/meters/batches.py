"""Sizes of batches: samples, tokens and the longest sample, without making the device compute or the host wait."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import torch

REMEMBERED = 256  # batches that a loader has given out and no forward has used yet


GENERATED = ("prompt_ids", "completion_ids")
"""Tensors of TRL's online trainers (GRPO, RLOO, ...), which the model sees side by side."""


@dataclass(frozen=True)
class BatchSize:
    """``None``: cannot be told from the batch."""

    samples: int | None = None
    tokens: int | None = None  # with padding
    real_tokens: int | None = None  # those that the attention mask keeps
    longest_sample: int | None = None  # tokens of the longest sample, without padding if that is known
    padded_length: int | None = None  # tokens of a sample with its padding, the most of all micro batches
    largest_micro_batch: int | None = None  # samples of the largest micro batch

    def __add__(self, other: "BatchSize") -> "BatchSize":
        """Add the sizes of two micro batches. A figure that one of them lacks is not known of both."""
        combined: tuple[Callable[..., int], ...] = (sum, sum, sum, max, max, max)
        pairs = zip(astuple(self), astuple(other), combined, strict=True)
        return BatchSize(*(None if None in (one, two) else combine((one, two)) for one, two, combine in pairs))


def size_of(batch: Any, samples: int | None = None) -> BatchSize:
    """Measure a batch: tokens are the elements of ``input_ids``, or of the first two-dimensional integer tensor.

    Preference data of TRL may hold one such tensor for each of ``chosen`` and ``rejected``: then each is counted; so
    are the prompts and completions of its GRPO. ``samples``: how many the loader chose; by default the rows of the
    first tensor, which are more where a sample is a pair of texts, and fewer where samples are packed.
    """
    named = dict(batch) if isinstance(batch, Mapping) else {}
    tensors = [value for value in (named.values() if named else _flat(batch)) if isinstance(value, torch.Tensor)]
    rows = next((tensor.shape[0] for tensor in tensors if tensor.dim()), None)
    samples = rows if samples is None else samples
    ids = [value for name, value in named.items() if name.endswith("input_ids") and _is_tokens(value)]
    ids = ids or [tensor for tensor in tensors if _is_tokens(tensor)][:1]
    if completions := [named[name] for name in GENERATED if _is_tokens(named.get(name))]:
        length = sum(tensor.shape[1] for tensor in completions)
        return BatchSize(samples, rows * length, None, length, length, samples)
    if not ids:
        return BatchSize(samples, largest_micro_batch=samples)
    tokens, length = sum(tensor.numel() for tensor in ids), max(tensor.shape[-1] for tensor in ids)
    real, longest = None, length
    masks = [value for name, value in named.items() if name.endswith("attention_mask") and _is_tokens(value)]
    if lengths := _packed_lengths(named):
        real, longest = sum(lengths), max(lengths)
    elif len(masks) == len(ids) and all(mask.device.type == "cpu" for mask in masks):
        kept = [mask.count_nonzero(dim=-1) for mask in masks]
        real, longest = int(sum(each.sum() for each in kept)), int(max(each.max() for each in kept))
    return BatchSize(samples, tokens, real, longest, length, samples)


def _is_tokens(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 2
        and value.numel() > 0
        and not (value.is_floating_point() or value.is_complex())
    )


def _packed_lengths(named: Mapping[str, Any]) -> list[int]:
    """Return the lengths of the samples of a packed batch: its position ids begin at 0 with each sample."""
    positions: Any = named.get("position_ids")
    if not _is_tokens(positions) or positions.device.type != "cpu" or "attention_mask" in named:
        return []
    starts = (positions.flatten() == 0).nonzero().flatten().tolist()
    return [end - start for start, end in zip(starts, [*starts[1:], positions.numel()], strict=True)]


def _flat(batch: Any) -> list[Any]:
    """List the members of nested tuples, lists and dicts."""
    if not isinstance(batch, Mapping | tuple | list):
        return [batch]
    return [leaf for value in (batch.values() if isinstance(batch, Mapping) else batch) for leaf in _flat(value)]


class BatchSizes:
    """Sizes of the batches that loaders gave out, found again by the batch itself."""

    def __init__(self):
        self._sizes: OrderedDict[int, BatchSize] = OrderedDict()
        self.latest: BatchSize | None = None

    def given(self, batch: Any, size: BatchSize) -> None:
        """Note a batch that a loader gives out, and its size."""
        self.latest = self._sizes[id(batch)] = size
        while len(self._sizes) > REMEMBERED:
            self._sizes.popitem(last=False)

    def used(self, batch: Any) -> None:
        """Note the batch of the forward that begins, or of the loss that is computed.

        Its size is that which its loader gave, unless that lacks tokens: a script may generate what it trains on.
        """
        self.latest = self._sizes.pop(id(batch), self.latest)
        if self.latest is None or self.latest.tokens is None:
            size = size_of(batch)
            self.latest = size if self.latest is None or size.tokens is not None else self.latest

    def take(self) -> BatchSize:
        """Return the size of the batch whose backward begins."""
        taken, self.latest = self.latest, None
        return taken or BatchSize()
