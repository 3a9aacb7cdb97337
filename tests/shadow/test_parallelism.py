"""Ranks that share a model or a sample: tensor, sequence and context parallelism, with the memory computed by hand."""

import pytest

from memlab.simulator.trace.work_items import Collective, StreamWaitsForCollective
from tests.shadow.model_folder import LAYERS, VOCABULARY, WIDTH, model_folder
from tests.shadow.one_rank import run_script

pytestmark = [pytest.mark.shadow, pytest.mark.long(10)]

BEGIN = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
used, peak = torch.cuda.memory_allocated, torch.cuda.max_memory_allocated
def told(*numbers):
    print("told", *numbers)
"""

LINEARS = """
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
by_sample = sys.argv[1:] == ["sequence"]
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = (torch.nn.Linear(*shape, bias=False) for shape in ((1024, 4096), (4096, 1024)))
    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
model = Block().cuda()
layouts = [{"input_layouts": Shard(0)}, {"output_layouts": Shard(0)}] if by_sample else [{}, {}]
parallelize_module(model, mesh, {"up": ColwiseParallel(**layouts[0]), "down": RowwiseParallel(**layouts[1])})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(2048 // (1 + by_sample), 1024, device="cuda")
for step in range(2):
    before = used()
    torch.cuda.reset_peak_memory_stats()
    y = model(x)
    told(before - x.nbytes, used() - before, peak() - before)
    y.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    del y
"""


def told(printed: str) -> list[list[int]]:
    return [list(map(int, line.split()[1:])) for line in printed.splitlines() if line.startswith("told")]


def run_with(tmp_path, lines: str, *arguments: str, rank: int = 0):
    (tmp_path / "script.py").write_text(BEGIN + lines)
    trace, printed = run_script(tmp_path, tmp_path / "script.py", arguments, rank)
    return trace, told(printed)


ROWS = 4 * 2048 * 1024  # bytes of 2,048 rows of 1,024 floats


@pytest.mark.parametrize(
    ("arguments", "kept", "peak", "collectives"),
    [
        # Half of the 4,096 columns and the result; before it, its part of each rank and the sum of the parts.
        ((), 2 * ROWS + ROWS, 4 * ROWS, 1),
        # Also the gathered rows; half of the result. The peak: both sides of ReLU.
        (("sequence",), ROWS + 2 * ROWS + ROWS // 2, 5 * ROWS, 3),
    ],
)
def test_tensor_and_sequence_parallelism_of_torch(tmp_path, arguments, kept, peak, collectives):
    trace, ((weights, *_), (_, *forward)) = run_with(tmp_path, LINEARS, *arguments)
    assert weights == 4 * 2 * 1024 * 4096 // 2
    assert forward == [kept, peak]  # of the second step: in the first, cuBLAS takes its workspace
    kinds = [type(item) for item in trace.work]
    assert kinds.count(Collective) == collectives <= kinds.count(StreamWaitsForCollective)


PLAN = """
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], tp_plan="auto")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
told(used(), model.model.layers[0].mlp.up_proj.weight.to_local().numel())
ids = torch.ones(2, 64, dtype=torch.int64, device="cuda")
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
"""


def test_the_tp_plan_of_transformers_halves_what_it_names(tmp_path):
    folder = model_folder(tmp_path / "model")
    whole = 2 * (LAYERS * 7 * WIDTH * WIDTH + 2 * VOCABULARY * WIDTH)  # bytes: the matrices, bf16
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        trace, ((loaded, of_one),) = run_with(tmp_path / str(rank), PLAN, str(folder), rank=rank)
        assert trace.rank == rank and len(trace.steps) == 1
        assert whole / 2 < loaded < 0.75 * whole  # versions differ in whether the plan names the embedding
        assert of_one == WIDTH * WIDTH // 2


RING = """
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.functional import scaled_dot_product_attention as local
x = torch.ones(1, 4096, 3 * 8 * 64, device="cuda", dtype=torch.bfloat16)
def step(x):
    x = x.detach().requires_grad_()
    before = used()
    q, k, v = (each.unflatten(2, (8, 64)).transpose(1, 2) for each in x.chunk(3, dim=2))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    told(out.numel(), used() - before)
    out.sum().backward()
step(x)
with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
    step(x)
told(x.shape[1])
torch.optim.SGD([torch.ones(1, device="cuda", requires_grad=True)]).step()
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_ring_attention_keeps_half_of_the_sample(tmp_path, rank):
    _, ((whole, kept), (half, kept_by_half), (after,)) = run_with(tmp_path, RING, rank=rank)
    assert (whole, half, after) == (8 * 64 * 4096, 8 * 64 * 2048, 4096)
    assert kept_by_half == pytest.approx(kept / 2, rel=0.02)
