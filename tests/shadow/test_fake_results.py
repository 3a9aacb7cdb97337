"""A result that is computed without FakeTensorMode is the one that FakeTensorMode computes."""

import subprocess
import sys

import pytest

from memlab.simulator.trace.events import Alloc
from tests.shadow.one_rank import run

pytestmark = pytest.mark.shadow


def test_meta_kernels_give_the_results_of_fake_tensor_mode():
    words = [sys.executable, "-m", "tests.shadow.results_of_meta"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == ""


COPIED = """
import torch
with torch.device("cuda"):
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(64, 2), 2)  # copies the layer
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.ones(16, 4, 64, device="cuda")).sum().backward()
    optimizer.step()
print("trained")
"""


def test_copied_modules_are_followed(tmp_path):
    """A copy of a fake tensor has a copy of its mode."""
    trace, printed = run(tmp_path, COPIED)
    assert "trained" in printed
    assert len(trace.steps) == 2


ANSWERS = """
import torch
x = torch.ones(3, device="cuda")
print(torch.is_same_size(x, x), x.dense_dim(), x.expand(2, 3).clone().tolist())
try:
    torch._foreach_add_([x], [torch.ones(4, device="cuda")])
except RuntimeError:
    print("refused")
empty = torch.empty(0, device="cuda")
empty.untyped_storage().resize_(48 << 20)
view = empty.as_strided((12 << 20,), (1,))
optimizer = torch.optim.SGD([torch.nn.Parameter(x)])
optimizer.step()
"""


def test_other_results_errors_and_views_are_torchs(tmp_path):
    trace, printed = run(tmp_path, ANSWERS)
    assert "True 1 [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]\nrefused" in printed
    assert 48 << 20 in [event.nbytes for event in trace.events if isinstance(event, Alloc)]
