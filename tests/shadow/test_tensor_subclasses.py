"""Tensors that hold others (DTensor), shapes inferred by libraries, and autocast: only real allocations count."""

import pytest

from tests.shadow.one_rank import run, run_script

pytestmark = pytest.mark.shadow

FSDP2 = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
model = torch.nn.Linear(1024, 1024, bias=False)
def shown(): print(torch.cuda.memory_allocated() >> 20, torch.cuda.max_memory_allocated() >> 20)
fully_shard(model, mesh=mesh)
shown()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 1024, device="cuda")).sum().backward()
before = torch.cuda.memory_allocated()
optimizer.step()
print(torch.cuda.memory_allocated() - before >> 20)
"""


def test_a_sharded_parameter_takes_its_shard_and_its_moments_as_much(tmp_path):
    """4 MiB on two ranks: the full parameter is freed, and each shard and each moment has 2 MiB."""
    script = tmp_path / "script.py"
    script.write_text(FSDP2)
    printed = run_script(tmp_path, script, rank=0)[1].splitlines()
    assert printed[:2] == ["2 6", "4"]


AUTOCAST = """
import torch
from torch.nn import functional as F
query = torch.empty(1, 4, 256, 64, device="cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    print(F.scaled_dot_product_attention(query, query, query).dtype)
print(F.scaled_dot_product_attention(query, query, query).dtype)
"""


def test_autocast_converts_what_attention_reads(tmp_path):
    assert run(tmp_path, AUTOCAST)[1].splitlines() == ["torch.bfloat16", "torch.float32"]


TIED = """
import os, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
with torch.device("meta"):
    model = torch.nn.Sequential(torch.nn.Embedding(4096, 256), torch.nn.Linear(256, 4096, bias=False))
model[1].weight = model[0].weight
fully_shard(model)
model.to_empty(device="cuda")
print("tied", model[0].weight is model[1].weight, torch.cuda.memory_allocated() >> 20)
"""


def test_a_tied_weight_of_fsdp2_stays_one_when_the_model_leaves_the_meta_device(tmp_path):
    (tmp_path / "script.py").write_text(TIED)
    _, printed = run_script(tmp_path, tmp_path / "script.py", rank=0)
    assert "tied True 2" in printed.splitlines()  # 4 MiB over two ranks
