"""CTC loss, by torch's own CUDA kernels: the alignments that the forward pass keeps, and those of the backward pass.

Source: ``aten/src/ATen/native/LossCTC.cpp`` and ``cuda/LossCTC.cu`` of PyTorch 2.11. cuDNN's kernel, whose memory only
cuDNN can tell, takes labels in int32 alone (``cudnn/LossCTC.cpp``).
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from memlab.simulator.rank.stand_ins import GpuModel, Kernel, Recorder, StandIn
from memlab.simulator.rank.unpredictable import UnpredictableError

_aten = torch.ops.aten


def stand_in(gpu: GpuModel) -> StandIn:
    backward = Kernel(temporaries=backward_alignments, has_tensors=True)
    return StandIn(
        changes={"torch.nn.functional": _lengths_on_the_host, "torch._subclasses.fake_impls": _shapes},
        kernels={_aten._ctc_loss_backward.default: backward},
    )


def _lengths_on_the_host(functional: ModuleType, recorder: Recorder) -> None:
    """Let the loss take lengths as numbers, as torch does with tensors that are no subclass of it."""
    ctc_loss = torch.ctc_loss

    def of_numbers(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *rest: Any, **options: Any):
        lengths = (
            each.cpu().tolist() if isinstance(each, torch.Tensor) else each for each in (input_lengths, target_lengths)
        )
        return ctc_loss(log_probs, targets, *lengths, *rest, **options)

    torch.ctc_loss = of_numbers
    recorder.answers[_aten._use_cudnn_ctc_loss.default] = uses_cudnn
    if hasattr(_aten, "_use_miopen_ctc_loss"):  # AMD's, from torch 2.13 on
        recorder.answers[_aten._use_miopen_ctc_loss.default] = lambda *arguments: False


def uses_cudnn(log_probs: torch.Tensor, targets: torch.Tensor, inputs: Any, lengths: Any, blank: int) -> bool:
    """Return ``False``: torch's kernels run. Raises :class:`UnpredictableError` where cuDNN's may."""
    kinds = (log_probs.dtype, targets.dtype, targets.dim(), blank)
    if torch.backends.cudnn.enabled and kinds == (torch.float32, torch.int32, 1, 0):
        raise UnpredictableError(
            "cuDNN may compute the CTC loss, in memory that only cuDNN can tell. Predict with labels in int64, or with "
            "torch.backends.cudnn.flags(enabled=False)"
        )
    return False


def _shapes(fake_impls: ModuleType, recorder: Recorder) -> None:
    @fake_impls.register_op_impl(_aten._ctc_loss.default)
    def loss(
        mode,
        func,
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        inputs: Sequence[int],
        lengths: Sequence[int],
        *rest,
        **options,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        longest = targets.shape[1] if targets.dim() == 2 else max(lengths, default=0)
        samples, steps = len(lengths), log_probs.shape[0]
        return log_probs.new_empty([samples]), log_probs.new_empty([samples, steps, 2 * longest + 1])

    @fake_impls.register_op_impl(_aten._ctc_loss_backward.default)
    def gradient(mode, func, grad: torch.Tensor, log_probs: torch.Tensor, *rest, **options) -> torch.Tensor:
        return torch.empty_like(log_probs)


def backward_alignments(grad, log_probs, targets, inputs, lengths, loss, log_alpha: torch.Tensor, *rest) -> list[int]:
    """Return the bytes of the backward alignments, which are as large as the forward ones."""
    return [log_alpha.numel() * log_alpha.element_size()]
