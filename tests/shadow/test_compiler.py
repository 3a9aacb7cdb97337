"""torch.compile on simulated GPUs: the real compiler, whose kernels are only counted."""

import pytest

from memlab.core.errors import ShadowError
from memlab.simulator.trace.events import Alloc
from tests.shadow.one_rank import run

pytestmark = [pytest.mark.shadow, pytest.mark.long(60)]

MODEL = """
import torch
from torch.nn import functional as F

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)

    def forward(self, x):
        y = F.gelu(self.first(x)) + 1
        return x + self.last(y * y)

def peak():
    print(torch.cuda.max_memory_allocated())
    torch.cuda.reset_peak_memory_stats()

model = torch.nn.Sequential(Block(), Block()).cuda()
x = torch.randn(1024, 256, device="cuda")
"""

TRAINED = (
    MODEL
    + """
{compiled}
optimizer = torch.optim.SGD(model.parameters())
for step in range(2):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    peak()
"""
)


def peaks(folder, compiled: str) -> list[int]:
    _, printed = run(folder, TRAINED.format(compiled=compiled))
    return [int(line) for line in printed.splitlines() if line.isdigit()]


def test_what_the_compiler_keeps_is_less_however_it_is_called(tmp_path):
    eager = peaks(tmp_path, "")
    model = peaks(tmp_path, "model = torch.compile(model)")
    assert model[1] < eager[1]
    assert peaks(tmp_path, "model.compile()") == model
    blocks = peaks(tmp_path, "for block in model: block.compile()")
    assert model[1] <= blocks[1] < eager[1]


def test_requests_of_generated_code_are_those_of_the_script_and_its_modules(tmp_path):
    trace, _ = run(tmp_path, TRAINED.format(compiled="model = torch.compile(model)"))
    sites = {trace.sites[event.site] for event in trace.events if isinstance(event, Alloc)}
    generated = [site for site in sites if site.op == "aten.empty_strided.default"]
    lines = {int(site.user_line.rpartition("script.py:")[2]) for site in generated}
    assert {11, 12} <= lines <= {11, 12, 24}  # the operations of a block; the sum behind them
    assert {"0.first", "0.last", "1.first", "1.last"} & {site.module for site in generated}
    assert not any("torchinductor" in site.where + site.user_line for site in sites)


def test_a_compiled_graph_returns_what_follows_from_known_values(tmp_path):
    lines = """
import torch

@torch.compile
def counted(labels, x):
    mask = labels != -100
    return mask.sum(), mask, (x * mask[..., None]).sum(), (x > 0).any()

@torch.compile
def later(positions):
    positions += 1
    return positions * 2

labels = torch.tensor([[1, 2, -100, 4]], device="cuda")
x = torch.randn(1, 4, 1 << 14, device="cuda", requires_grad=True)
number, mask, loss, any_ = counted(labels, x)
loss.backward()
positions = torch.arange(3, device="cuda")
print(number.item(), mask.tolist(), loss.item(), any_.item(), later(positions).tolist(), positions.tolist())
"""
    trace, printed = run(tmp_path, lines)
    assert printed.splitlines()[-1] == "3 [[True, True, False, True]] 1.0 False [2, 4, 6] [1, 2, 3]"
    assert [line.rpartition(" was taken ")[2] for line in trace.assumed] == ["as 1.0", "as False"]


def test_shapes_that_change_are_compiled_again_and_the_step_of_an_optimizer_is_compiled(tmp_path):
    lines = (
        MODEL
        + """
model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
step = torch.compile(optimizer.step)
for tokens in (1024, 512, 768):
    model(x[:tokens]).sum().backward()
    step()
    optimizer.zero_grad()
    peak()
"""
    )
    _, printed = run(tmp_path, lines)
    assert len([line for line in printed.splitlines() if line.isdigit()]) == 3


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            'torch.compile(model, mode="reduce-overhead")(x)',
            r'script\.py:\d+: torch.compile with mode="reduce-overhead"',
        ),
        ('torch.compile(model, mode="max-autotune-no-cudagraphs")(x)', r'torch.compile with mode="max-autotune"'),
        ('torch.compile(model, backend="cudagraphs")', r"torch.compile's backend cudagraphs is not predicted"),
        ('torch.__version__ = "2.12.1"; torch.compile(model)', r"the compiler of torch 2.11 and 2.13, not of 2.12"),
        (
            "import torch._inductor.constant_folding as folding; del folding.ConstantFolder.run\n"
            "from memlab.simulator.rank.stand_ins import compiler\n"
            "compiler._as_expected(None, folding, None)",
            r"torch._inductor.constant_folding.ConstantFolder.run of torch .+ is not as memlab knows it",
        ),
    ],
)
def test_what_the_compiler_cannot_be_followed_in_is_one_line(tmp_path, lines, told):
    with pytest.raises(ShadowError, match=told):
        run(tmp_path, MODEL + lines)
