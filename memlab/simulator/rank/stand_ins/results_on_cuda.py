"""Results of operators that torch gives no fake implementation: their shapes are those of CUDA's kernels.

Sources in ``aten/src/ATen/native``: ``cuda/Normalization.cu`` (SyncBatchNorm), ``cuda/RNN.cu`` (GRU cells),
``cuda/Distributions.cpp``, ``cuda/MultiMarginLoss.cu``, ``quantized/FakeQuantPerTensorAffine.cpp`` of PyTorch 2.11.
"""

from types import ModuleType

import torch

from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn

_aten = torch.ops.aten

_LIKE_AN_ARGUMENT = {
    _aten._dirichlet_grad.default: 0,
    _aten._sample_dirichlet.default: 0,
    _aten._standard_gamma_grad.default: 0,
    _aten.batch_norm_backward_elemt.default: 0,
    _aten.batch_norm_elemt.default: 0,
    _aten.binomial.default: 0,
    _aten.multi_margin_loss_backward.default: 1,
    _aten.multilabel_margin_loss_backward.default: 1,
}
"""Operators whose result is like one of their arguments -> its place."""

_SAVED_BY_GRU_CELL = 5
"""``GRU_WORKSPACE_MULTIPLIER``: values that a GRU cell keeps for each of its hidden state."""


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(changes={"torch._subclasses.fake_impls": _shapes})


def _shapes(fake_impls: ModuleType, recorder: Recorder) -> None:
    for operator, place in _LIKE_AN_ARGUMENT.items():
        fake_impls.register_op_impl(operator)(lambda mode, func, *args, place=place, **options: args[place].clone())

    @fake_impls.register_op_impl(_aten.fake_quantize_per_tensor_affine_cachemask.default)
    @fake_impls.register_op_impl(_aten.fake_quantize_per_channel_affine_cachemask.default)
    def quantized(mode, func, tensor: torch.Tensor, *rest) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)

    @fake_impls.register_op_impl(_aten.batch_norm_stats.default)
    def statistics(mode, func, batch: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        mean = batch.new_empty([batch.shape[1]], dtype=torch.float64 if batch.dtype is torch.float64 else torch.float32)
        return mean, torch.empty_like(mean)

    @fake_impls.register_op_impl(_aten.batch_norm_gather_stats_with_counts.default)
    def gathered(mode, func, batch: torch.Tensor, means: torch.Tensor, *rest) -> tuple[torch.Tensor, torch.Tensor]:
        return means.new_empty([means.shape[1]]), means.new_empty([means.shape[1]])

    @fake_impls.register_op_impl(_aten.batch_norm_backward_reduce.default)
    def reduced(mode, func, grad, batch, mean, invstd, weight, *wanted: bool) -> tuple[torch.Tensor | None, ...]:
        of_sums, of_weight, of_bias = wanted
        sums = (torch.empty_like(mean) if of_sums else None for _ in range(2))
        return *sums, weight.clone() if of_weight else None, weight.clone() if of_bias else None

    @fake_impls.register_op_impl(_aten._thnn_fused_gru_cell.default)
    def cell(mode, func, inputs, hidden, state: torch.Tensor, *biases) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(state), state.new_empty([state.shape[0], _SAVED_BY_GRU_CELL * state.shape[1]])

    @fake_impls.register_op_impl(_aten._thnn_fused_gru_cell_backward.default)
    def cell_backward(mode, func, grad: torch.Tensor, saved, has_bias: bool) -> tuple[torch.Tensor | None, ...]:
        gates = [grad.new_empty([grad.shape[0], 3 * grad.shape[1]]) for _ in range(2)]
        biases = [grad.new_empty([3 * grad.shape[1]]) if has_bias else None for _ in range(2)]
        return *gates, torch.empty_like(grad), *biases
