"""torch.compile: as many graphs, recompiled ones among them, and graph breaks with the meters as without."""

import subprocess

import pytest
from interpreter import PYTHON

pytestmark = [pytest.mark.cpu, pytest.mark.long(10)]

COMPILED = """
import os, torch, torch.distributed as dist
from torch._dynamo.utils import counters
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

def counted(name, function):
    torch._dynamo.reset()
    counters.clear()
    function()
    print(name, {key: dict(counters[key]) for key in ("stats", "graph_break")}, flush=True)

def loop(model, optimizer, step=None):
    for ids in DataLoader([torch.arange(8 if i < 8 else 6) for i in range(12)], batch_size=4):
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        (step or optimizer.step)()
        optimizer.zero_grad()

def net():
    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 9))

def plain():
    model = net()
    loop(torch.compile(model, backend="eager"), torch.optim.AdamW(model.parameters()))

def wrapped():
    model = DistributedDataParallel(net())
    loop(torch.compile(model, backend="eager"), torch.optim.AdamW(model.parameters()))

def inside():
    model = DistributedDataParallel(torch.compile(net(), backend="eager"))
    loop(model, torch.optim.AdamW(model.parameters()))

def whole_step():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    @torch.compile(backend="eager")
    def step(ids):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        model.train()
        return loss
    for _ in range(3):
        step(torch.arange(8).view(1, 8)).backward()
        optimizer.step()

def optimizer_step():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    loop(model, optimizer, torch.compile(optimizer.step, backend="eager"))

os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for function in (plain, wrapped, inside, whole_step, optimizer_step):
    counted(function.__name__, function)
"""


def test_the_compiler_sees_the_same(measure, tmp_path):
    (tmp_path / "script.py").write_text(COMPILED)
    bare = subprocess.run([PYTHON, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    measured = measure(COMPILED)
    assert bare.returncode == measured.returncode == 0, bare.stderr + measured.output
    assert "plain" in bare.stdout and "unique_graphs" in bare.stdout
    assert [line for line in measured.output.splitlines() if "stats" in line] == bare.stdout.splitlines()
