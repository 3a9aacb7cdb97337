"""What optimizers of packages ask of torch beside ordinary operators."""

import pytest

from memlab.simulator.trace.events import Alloc, HostAlloc
from tests.shadow.one_rank import run, run_script

pytestmark = [pytest.mark.shadow, pytest.mark.long(6)]

NUMBERS = """
import torch

@torch.library.custom_op("mine::scale", mutates_args=())
def scale(tensor: torch.Tensor, factor: float, times: int = 1) -> torch.Tensor:
    return tensor * factor

@scale.register_fake
def _(tensor, factor, times=1):
    assert type(factor) is float and type(times) is int
    return torch.empty_like(tensor)

large = torch.randn(1 << 14, device="cuda")
print(torch.ops.mine.scale(large, large.norm()).shape)
print(torch.ops.mine.scale(large, factor=large.norm(), times=torch.tensor(3, device="cuda")).shape)
try:
    torch.ops.mine.scale(large, "a word")
except RuntimeError as error:
    print("refused", "a word" in str(error))
"""


def test_an_operator_reads_a_tensor_that_is_given_for_a_number(tmp_path):
    """As bitsandbytes' operators for LAMB, LARS and GaLore read the norm of the weights."""
    _, printed = run(tmp_path, NUMBERS)
    assert printed.splitlines() == [*2 * ["torch.Size([16384])"], "refused True"]


STATES = """
import bitsandbytes as bnb, sys, torch
for name in ("AdamW8bit", "Lion8bit", "AdamW32bit", "PagedAdamW32bit", "PagedLion8bit"):
    weights = [torch.nn.Parameter(torch.ones(size, device="cuda")) for size in (1 << 20, 32768, 2048)]
    optimizer = getattr(bnb.optim, name)(weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    before = torch.cuda.memory_allocated()
    optimizer.step()
    print(name, torch.cuda.memory_allocated() - before)
"""
LARGE, MIDDLE, SMALL = 1 << 20, 32768, 2048
SCALES = 4 * (LARGE + MIDDLE) // 256
TABLE = 4 * 256


def test_states_of_bitsandbytes_have_8_bits_where_tensors_are_large_and_are_on_the_host_where_they_are_paged(tmp_path):
    _, printed = run(tmp_path, STATES)
    states = {name: int(nbytes) for name, nbytes in (line.split() for line in printed.splitlines() if "bit " in line)}
    one = LARGE + MIDDLE + SCALES + 4 * SMALL
    assert states == {
        "AdamW8bit": 2 * one + 2 * TABLE,
        "Lion8bit": one + TABLE,
        "AdamW32bit": 8 * (LARGE + MIDDLE + SMALL),
        "PagedAdamW32bit": 8 * (MIDDLE + SMALL),
        "PagedLion8bit": one + TABLE - LARGE,
    }


PROJECTED = """
import torch
gradient = torch.randn(1024, 4096, device="cuda")
before = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
left, values, right = torch.linalg.svd(gradient, full_matrices=False)
print("kept", torch.cuda.memory_allocated() - before, "peak", torch.cuda.max_memory_allocated() - before)
"""


def test_a_singular_value_decomposition_copies_what_it_decomposes(tmp_path):
    """As GaLore makes its projections."""
    trace, printed = run(tmp_path, PROJECTED)
    kept = 4 * (1024 * 1024 + 1024 + 1024 * 4096)
    assert printed.split() == ["kept", str(kept), "peak", str(kept + 4 * 1024 * 4096)]
    assert sum(isinstance(event, Alloc) for event in trace.events) == 5


LOMO = """
import torch

class Lomo(torch.optim.Optimizer):
    def __init__(self, model):
        super().__init__(model.parameters(), {})
        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(self.update)

    def update(self, weight):
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad = None

    def fused_backward(self, loss, lr):
        loss.backward()

AdaLomo = Lomo
"""

FUSED = """
import lomo_optim, torch
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = lomo_optim.Lomo(model)
for _ in range(3):
    optimizer.fused_backward(model(torch.ones(8, 256, device="cuda")).sum(), lr=0.1)
"""


def test_a_step_that_is_fused_with_the_backward_pass_is_seen(tmp_path):
    (tmp_path / "lomo_optim.py").write_text(LOMO)
    trace, _ = run(tmp_path, FUSED)
    assert "optimizer_step" in trace.phases


ZENFLOW = """
import deepspeed, torch
offload = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
offload["zenflow"] = {"topk_ratio": 0.1, "update_interval": 4, "full_warm_up_rounds": 0, "overlap_step": True}
config = {"train_batch_size": 2, "bf16": {"enabled": True}, "zero_optimization": offload}
config["optimizer"] = {"type": "AdamW", "params": {"lr": 2e-5}}
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 8))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(6):
    loss = engine(torch.randn(1, 1024, device=engine.device, dtype=torch.bfloat16)).sum()
    engine.backward(loss)
    engine.step()
print("done")
"""


def test_zenflows_optimizer_needs_no_process(tmp_path):
    (tmp_path / "script.py").write_text(ZENFLOW)
    trace, printed = run_script(tmp_path, tmp_path / "script.py", rank=0)
    assert printed.splitlines()[-1].endswith("done")
    of_a_rank = 4 * (1024 * 1024 + 1024 + 8 * 1024 + 8) // 2  # bytes of a number in float32 for each parameter
    states = [event.nbytes for event in trace.events if isinstance(event, HostAlloc) and not event.pinned]
    assert sum(nbytes == of_a_rank for nbytes in states) >= 4
