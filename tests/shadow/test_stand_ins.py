"""A new kernel is one file: what it says it takes and launches is in the trace."""

import os

import pytest

from memlab.simulator.trace.events import Alloc, Free
from tests.shadow.one_rank import run

pytestmark = pytest.mark.shadow

NEW_KERNEL = """
import torch
from memlab.simulator.rank.kernel import Kernel
from memlab.simulator.rank.stand_ins import StandIn

def stand_in(gpu):
    kernel = Kernel(
        temporaries=lambda tensor: [100],
        workspaces=lambda tensor: [200, 300],
        kept=lambda tensor: [400],
        launches=lambda tensor: [[10, 20]],
        owner="new",
    )
    return StandIn(kernels={torch.ops.aten.asinh.default: kernel})
"""


RECORDED = """
import sys
import torch
from memlab.simulator.constants import GPU_MODELS
from memlab.simulator.rank import device, stand_ins
from memlab.simulator.trace.work_items import KernelLaunch

stand_ins.__path__ = [sys.argv[1]]
stand_ins.install(device.recorder, GPU_MODELS["H100"])
tensor = torch.empty(4, device="cuda")
device.recorder.counter.start()
torch.asinh(tensor)
print("launches", *(item.sizes for item in device.recorder.counter.items if isinstance(item, KernelLaunch)))
"""


def test_a_stand_in_is_found_in_the_folder_and_recorded(tmp_path):
    folder = tmp_path / "stand_ins"
    folder.mkdir()
    (folder / "new_kernel.py").write_text(NEW_KERNEL)
    trace, printed = run(tmp_path, RECORDED, arguments=(str(folder),))
    allocated = {event.key: event.nbytes for event in trace.events if isinstance(event, Alloc)}
    assert list(allocated.values()) == [16, 100, 16, 200, 300, 400]  # the tensor; asinh, whose result is the third
    freed = [allocated[event.key] for event in trace.events if isinstance(event, Free)]
    assert freed[:4] == [100, 200, 300, 16]
    assert "new" in {site.op for site in trace.sites}
    assert "launches (10, 20)" in printed


EMBEDDING = """
import torch
words, indices = torch.nn.Embedding(50_000, 1024, device="cuda"), torch.arange(4096, device="cuda")
torch.cuda.reset_peak_memory_stats()
words(indices).sum().backward()
"""


def test_the_gradient_of_an_embedding_has_partial_sums(tmp_path):
    """4,505 rows of 1,024 floats for 4,096 tokens: one each, and one more for every ten."""
    trace, _ = run(tmp_path, EMBEDDING)
    assert max(event.nbytes for event in trace.events if isinstance(event, Alloc) and event.nbytes < 40 << 20) == (
        4505 * 1024 * 4
    )


DROPOUT = """
import torch
torch.nn.functional.dropout(torch.empty(1 << 20, device="cuda"), 0.1)
"""


def test_dropout_allocates_its_mask_before_its_result(tmp_path):
    trace, _ = run(tmp_path, DROPOUT)
    sizes = [event.nbytes for event in trace.events if isinstance(event, Alloc) and event.nbytes >= 1 << 20]
    assert sizes == [4 << 20, 1 << 20, 4 << 20]


MASKED = """
import torch
query = torch.empty(1, 2, 1024, 64, dtype=torch.bfloat16, device="cuda")
mask = torch.empty(1, 1, 1024, 1024, dtype=torch.bool, device="cuda")
torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
"""


def test_a_boolean_mask_becomes_numbers_in_the_dtype_of_the_query_at_once(tmp_path):
    trace, _ = run(tmp_path, MASKED)
    sizes = [event.nbytes for event in trace.events if isinstance(event, Alloc) and event.nbytes >= 1 << 20]
    assert sizes == [1 << 20, 2 << 20]


MPI = """
class World:
    Get_rank, Get_size = (lambda self: 0), (lambda self: 1)
    bcast, allgather = (lambda self, value, root: value), (lambda self, value: [value])
class MPI:
    COMM_WORLD, Get_processor_name = World(), (lambda: "here")
"""


def test_deepspeed_finds_an_address_without_a_launcher(tmp_path, monkeypatch):
    (tmp_path / "mpi4py.py").write_text(MPI)
    (tmp_path / "hostname").write_text("#!/bin/sh\n")  # as in a sandbox, which has its loopback device alone
    (tmp_path / "hostname").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    lines = "import os, deepspeed\ndeepspeed.init_distributed()\nprint(os.environ['MASTER_ADDR'], os.environ['RANK'])\n"
    assert run(tmp_path, lines)[1].splitlines()[-1] == "127.0.0.1 0"
