"""Single precision on tensor cores, as torch is set. No GPU."""

import pytest
import torch

from memlab.simulator.rank.tf32 import uses_tf32

pytestmark = pytest.mark.shadow

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def as_torch_begins():
    yield
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = False


def test_convolutions_do_unless_the_script_forbids_it():
    assert uses_tf32(aten.convolution) and uses_tf32(aten.convolution_backward)
    torch.backends.cudnn.allow_tf32 = False
    assert not uses_tf32(aten.convolution) and not uses_tf32(aten.convolution_backward)


def test_products_do_if_the_script_wants_it():
    assert not uses_tf32(aten.addmm)
    torch.backends.cuda.matmul.allow_tf32 = True
    assert uses_tf32(aten.addmm)


def test_fused_attention_does():
    assert uses_tf32(aten._scaled_dot_product_efficient_attention)
