"""Products of matrices in half precision with a result in single precision."""

import pytest

from memlab.core.record import WORK
from memlab.simulator.trace.work_items import KernelLaunch
from tests.shadow.one_rank import run

pytestmark = pytest.mark.shadow

LINES = """
import torch
bias, half = torch.ones(8, 32, device="cuda"), torch.ones(8, 16, dtype=torch.bfloat16, device="cuda")
other = torch.ones(16, 32, dtype=torch.bfloat16, device="cuda")
weight = torch.nn.Parameter(torch.ones(1, device="cuda"))
optimizer = torch.optim.SGD([weight])
for _ in range(2):
    made = torch.addmm(bias, half, other, out_dtype=torch.float32)
    print(made.dtype, torch.addmm(bias, half, other, out_dtype=torch.float32, out=made) is made)
    weight.sum().backward()
    optimizer.step()
"""


def test_a_product_with_a_bias_has_its_dtype_and_its_flops(tmp_path):
    trace, printed = run(tmp_path, LINES)
    assert printed.splitlines()[-2:] == ["torch.float32 True"] * 2
    assert WORK not in trace.unknown
    assert 2 * 8 * 16 * 32 in [item.flops for item in trace.work if isinstance(item, KernelLaunch)]
