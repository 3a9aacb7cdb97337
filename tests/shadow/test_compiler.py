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
        (
            "from memlab.simulator.rank import compiler_places\n"
            "compiler_places.find_spec = lambda name: None\ntorch.compile(model)",
            r"torch.compile for a GPU needs triton, which is not installed. Install it: pip install triton",
        ),
        ('torch.compile(model, backend="cudagraphs")', r"torch.compile's backend cudagraphs is not predicted"),
        ('torch.__version__ = "2.12.1"; torch.compile(model)', r"the compiler of torch 2.11 and 2.13, not of 2.12"),
        (
            "import torch._inductor.constant_folding as folding; del folding.ConstantFolder.run\n"
            "from memlab.simulator.rank import compiler_places\n"
            "compiler_places.checked({folding.__name__: None})[folding.__name__](folding, None)\n"
            "print(model(x).sum().item())\ntorch.compile(model)",
            r"torch._inductor.constant_folding.ConstantFolder.run of torch .+ is not as memlab knows it",
        ),
    ],
)
def test_what_the_compiler_cannot_be_followed_in_is_one_line(tmp_path, lines, told):
    with pytest.raises(ShadowError, match=told):
        run(tmp_path, MODEL + lines)


def test_what_an_unknown_value_was_written_to_is_unknown(tmp_path):
    lines = """
import torch

@torch.compile
def masked(labels, x):
    labels.masked_fill_(x.mean(-1) > 0, -100)
    return (labels != -100).sum()

labels = torch.tensor([1, 2, 3, 4], device="cuda")
number = masked(labels, torch.randn(4, 1 << 14, device="cuda"))
print(hasattr(labels.untyped_storage(), "_memlab_values"), hasattr(number.untyped_storage(), "_memlab_values"))
"""
    _, printed = run(tmp_path, lines)
    assert printed.splitlines()[-1] == "False False"


def test_a_graph_takes_no_random_numbers_of_the_host(tmp_path):
    lines = """
import torch

@torch.compile
def drawn(x):
    return torch.randint(0, 1000, (4,), device="cuda"), x * 2

torch.manual_seed(0)
expected = torch.rand(1).item()
torch.manual_seed(0)
drawn(torch.ones(2, device="cuda"))
print(torch.rand(1).item() == expected)
"""
    _, printed = run(tmp_path, lines)
    assert printed.splitlines()[-1] == "True"


def test_a_compiled_function_of_a_library_is_a_part_of_the_graph_of_its_caller(tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "library.py").write_text(
        "import torch\n@torch.compile\ndef doubled(x): return x * 2\n"
    )
    lines = """
import os, sys, torch
sys.path.append(os.path.join(os.path.dirname(__file__), "site-packages"))
from library import doubled

@torch.compile(fullgraph=True)
def called(x):
    return doubled(x + 1) * 3

x = torch.ones(1 << 10, device="cuda")
called(x), doubled(x)
print("done")
"""
    _, printed = run(tmp_path, lines)
    assert printed.splitlines()[-1] == "done"


def test_a_second_prediction_of_padded_products_takes_the_same_memory(tmp_path):
    lines = """
import torch

@torch.compile
def product(bias, a, b):
    return torch.addmm(bias, a, b)

shapes = ((1023,), (8191, 4095), (4095, 1023))
product(*(torch.randn(shape, device="cuda", dtype=torch.float16) for shape in shapes))
print(torch.cuda.max_memory_allocated())
"""
    first, second = (run(tmp_path, lines) for _ in range(2))
    assert first[1].splitlines()[-1] == second[1].splitlines()[-1]
    assert len(first[0].events) == len(second[0].events)
    assert "a compiled matrix product with padded sizes was taken as faster" in first[0].assumed


def test_a_second_prediction_finds_the_graphs_of_the_first(tmp_path):
    lines = """
import torch
from torch._dynamo.utils import counters
from torch.nn.functional import scaled_dot_product_attention

@torch.compile
def attended(x):
    return scaled_dot_product_attention(x, x, x, is_causal=True) * torch.tensor(2.0, device="cuda")

attended(torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)).sum().backward()
print(torch.cuda.max_memory_allocated())
print(counters["aot_autograd"]["autograd_cache_hit"])
"""
    first, second = (run(tmp_path, lines)[1].splitlines()[-2:] for _ in range(2))
    assert first[0] == second[0] and second[1] == "1"
