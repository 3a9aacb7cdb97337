"""Calls each operator of ``OF_META`` with tensors of several layouts and dtypes. Prints the results that FakeTensorMode
computes differently."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memlab.simulator.rank import fake_results
from memlab.simulator.rank.fake_results import OF_META, FakeResults

ATEN, CUDA = torch.ops.aten, torch.device("cuda", 0)
SINGLE, HALF, WHOLE, BOOLEAN = torch.float32, torch.bfloat16, torch.int64, torch.bool
BATCH, TOKENS, WIDTH = 3, 5, 7
SHAPE = [BATCH, TOKENS, WIDTH]
RESULTS = FakeResults(FakeTensorMode())


def new(*shape: int, dtype: torch.dtype = HALF) -> Any:
    return RESULTS.empty(shape, dtype, CUDA)


def calls() -> dict[Any, Sequence[tuple]]:
    """Operator -> arguments of its calls."""
    x, y, exact, numbers = new(*SHAPE), new(*SHAPE), new(*SHAPE, dtype=SINGLE), new(*SHAPE, dtype=WHOLE)
    turned = RESULTS.of(ATEN.transpose.int, (new(BATCH, WIDTH, TOKENS), 1, 2), {})
    column, row, zero = new(BATCH, TOKENS, 1, dtype=SINGLE), new(WIDTH), new(dtype=SINGLE)
    wide = RESULTS.of(ATEN.expand.default, (column, SHAPE), {})
    mask, label, ids = new(BATCH, 1, WIDTH, dtype=BOOLEAN), new(TOKENS, dtype=WHOLE), new(BATCH, TOKENS, dtype=WHOLE)
    matrix, scores, batched = new(TOKENS, WIDTH), new(TOKENS, WIDTH, dtype=SINGLE), new(BATCH, WIDTH, 4)
    factors = new(WIDTH, 4), RESULTS.of(ATEN.t.default, (new(4, WIDTH),), {})
    floats, pairs = [x, turned, exact, wide], [(x, y), (turned, x), (x, turned), (turned, turned), (wide, x)]
    mixed = [(x, exact), (row, x), (x, column), (x, zero), (numbers, x), (numbers, 2.5), (mask, 2), (zero, numbers)]
    normed = [(each, [WIDTH], weight, bias, 1e-5) for each, weight, bias in [(x, row, row), (turned, row, None)]]
    gradients = [(x, turned, [WIDTH], column, column, row, row, [True, wanted, True]) for wanted in (True, False)]
    losses = [(scores, label, None, reduction, -100) for reduction in range(3)]
    alone = [(each,) for each in floats]
    return {
        **dict.fromkeys((ATEN.add.Tensor, ATEN.sub.Tensor, ATEN.mul.Tensor, ATEN.div.Tensor), (*pairs, *mixed)),
        **dict.fromkeys((ATEN.mul.Scalar, ATEN.pow.Tensor_Scalar), tuple((each, 2) for each in (*floats, numbers))),
        **dict.fromkeys((ATEN.eq.Scalar, ATEN.ne.Scalar), ((ids, 0), (turned, 0.5), (mask, 1))),
        **dict.fromkeys((ATEN.neg.default, ATEN.rsqrt.default, ATEN.sum.default, ATEN.clone.default), (*alone, (ids,))),
        **dict.fromkeys((ATEN.tanh.default, ATEN.sigmoid.default, ATEN.gelu.default, ATEN.silu.default), alone),
        **dict.fromkeys((ATEN.gelu_backward.default, ATEN.silu_backward.default), pairs),
        **dict.fromkeys((ATEN.tanh_backward.default, ATEN.sigmoid_backward.default), pairs),
        ATEN.threshold_backward.default: [(*pair, 0) for pair in pairs],
        ATEN.eq.Tensor: [(ids, label), (x, turned)],
        ATEN.where.self: [(mask, x, y), (mask, x, zero), (mask, zero, new()), (mask, turned, turned)],
        ATEN.masked_fill.Scalar: [(x, mask, 0.0), (wide, mask, 0.0), (turned, mask, 0.0)],
        ATEN.mm.default: [(matrix, factor) for factor in factors],
        ATEN.addmm.default: [(bias, matrix, each) for bias, each in product((new(4), new(TOKENS, 4)), factors)],
        ATEN.bmm.default: [(x, batched), (turned, batched)],
        ATEN.cat.default: [([x, y], 0), ([x, exact], -1), ([turned, turned], 1), ([x, turned], 2), ([new(0), x], 1)],
        ATEN.sum.dim_IntList: list(product(floats, ([0], [0, 1]), (True, False))),
        ATEN.mean.dim: list(product(floats, ([-1],), (True, False))),
        ATEN._to_copy.default: alone,
        ATEN.embedding.default: [(new(9, WIDTH), ids)],
        ATEN.embedding_dense_backward.default: [(each, ids, 9, -1, False) for each in (x, turned)],
        ATEN.native_layer_norm.default: normed,
        ATEN.native_layer_norm_backward.default: gradients,
        ATEN.nll_loss_forward.default: losses,
        ATEN.nll_loss_backward.default: [(zero if call[3] else new(TOKENS), *call, zero) for call in losses],
        ATEN.slice_backward.default: [(each, [BATCH, TOKENS + 3, WIDTH], 1, 1, TOKENS + 1, 1) for each in (x, turned)],
    }


def told(out: Any) -> Any:
    """What memlab uses of a result."""
    if isinstance(out, tuple):
        return [*map(told, out)]
    layout = None if out is None else (out.shape, out.stride(), out.untyped_storage().nbytes())
    return layout and (*layout, out.dtype, out.fake_device)


def refuse(*arguments: Any) -> None:
    raise AssertionError("FakeTensorMode was asked")


if __name__ == "__main__":
    options = {ATEN._to_copy.default: [{"dtype": SINGLE}, {"dtype": HALF}]}
    arguments_of, mode = calls(), RESULTS._mode
    for operator in OF_META:
        for arguments, names in product(arguments_of[operator], options.get(operator, [{}])):
            mode.dispatch = refuse
            own = told(RESULTS.of(operator, arguments, names))
            del mode.dispatch
            fake_results.OF_META = frozenset()
            its = told(FakeResults(mode).of(operator, arguments, names))
            fake_results.OF_META = OF_META
            if own != its:
                print(operator, own, its)
