"""Loaders of predicted scripts stay the script's own objects, and none starts processes."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from memlab.prediction.run_command import LOG, simulate
from memlab.simulator.simulation import Node
from memlab.simulator.trace.trace_format import Trace

pytestmark = [pytest.mark.shadow, pytest.mark.long(8)]

NODE = Node("NVIDIA H200", 2, 139 << 30)

DATA = """
import os, random, sys
import numpy, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, get_worker_info

class Rows(Dataset):
    opened = False
    def __len__(self):
        return 40
    def __getitem__(self, row):
        assert not self.opened or get_worker_info().id == 0
        return torch.full((300 if row == 27 else 10 + row % 20,), 3)

def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

def train(loader, epochs=2, most=None):
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        for number, batch in enumerate(loader):
            print("batch", epoch, *batch.shape, flush=True)
            model(batch.cuda()).sum().backward()
            optimizer.step()
            if number == most:
                break
"""

PERSISTENT = """
import inspect
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

def begin_worker(number):
    numpy.random.seed(number)
    random.seed(number)
    torch.manual_seed(number)
    get_worker_info().dataset.opened = True

of_workers = dict(num_workers=2, persistent_workers=True, prefetch_factor=4, timeout=30, worker_init_fn=begin_worker)
loader = DataLoader(Rows(), 4, True, collate_fn=padded, **of_workers)
assert "dataset" in inspect.signature(DataLoader.__init__).parameters
assert all(getattr(loader, name) == value for name, value in of_workers.items())
assert isinstance(iter(loader), _MultiProcessingDataLoaderIter) and get_worker_info() is None
torch.manual_seed(1)
states = random.random(), numpy.random.rand()
random.seed(5), numpy.random.seed(5)
first = random.random(), numpy.random.rand()
random.seed(5), numpy.random.seed(5)
iter(DataLoader(Rows(), 4, collate_fn=padded, num_workers=1, worker_init_fn=begin_worker))
assert first == (random.random(), numpy.random.rand())
train(loader, 3)
print("done")
"""


def run(folder: Path, lines: str, words: tuple[str, ...] = ()) -> tuple[dict[int, Trace], list[str]]:
    """Return the traces of a script by rank, and the lines that it printed."""
    (folder / "script.py").write_text(DATA + lines)
    simulated = simulate([sys.executable, str(folder / "script.py"), *words], NODE, folder, None, os.environ)
    assert not simulated.returncode, simulated.last_words
    return dict(simulated.traces), (folder / LOG).read_text().splitlines()


def batches(printed: list[str], epoch: int) -> list[str]:
    return [line for line in printed if line.startswith(f"batch {epoch} ")]


def test_workers_that_persist_are_one_worker_of_this_process(tmp_path):
    traces, printed = run(tmp_path, PERSISTENT)
    assert "done" in printed and "batch 0 4 300" in printed
    assert [len(batches(printed, epoch)) for epoch in range(3)] == [4, 1, 1]
    (epoch,) = traces[0].epochs
    assert epoch["batches"] == 10


SPLIT = """
class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        assert worker.num_workers == 3
        return iter([torch.full((10 + row,), 3) for row in range(self.first, 12, worker.num_workers)])

def take_a_part(number):
    get_worker_info().dataset.first = number

stream = Stream()
train(DataLoader(stream, 4, collate_fn=padded, num_workers=3, worker_init_fn=take_a_part))
assert not hasattr(stream, "first")
"""


def test_a_stream_that_workers_share_gives_the_batches_of_each_in_turn(tmp_path):
    traces, printed = run(tmp_path, SPLIT)
    assert batches(printed, 0) == ["batch 0 4 19", "batch 0 4 20", "batch 0 4 21"] and batches(printed, 1)
    (epoch,) = traces[0].epochs
    assert epoch["batches"] == 3


DRAWS = """
class Rows(Rows):
    def __getitems__(self, rows):
        return [torch.ones(4).long()]

train(DataLoader(Rows(), 4096, sampler=RandomSampler(Rows(), True, 10**10), collate_fn=padded), most=50)
"""


def test_a_sampler_of_very_many_draws_is_listed_for_some_seconds(tmp_path):
    traces, _ = run(tmp_path, DRAWS)
    (epoch,) = traces[0].epochs
    assert not epoch["failure"] and epoch["batches_read"] and epoch["seconds"] < 30


OWN_RANKS = """
import subprocess
import torch.distributed as dist

os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "NODE_RANK": "0", "WORLD_SIZE": "3"}
local_rank = int(os.environ.setdefault("LOCAL_RANK", "0"))
if not local_rank:
    for number in (1, 2):
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": str(number)})
dist.init_process_group("nccl", rank=local_rank, world_size=3)
torch.cuda.set_device(local_rank % 2)
train(DataLoader(Rows(), 4, collate_fn=padded))
dist.destroy_process_group()
del os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]
"""


def test_ranks_that_a_script_starts_itself_run_to_their_end(tmp_path):
    traces, _ = run(tmp_path, OWN_RANKS)
    assert {rank: (trace.rank, trace.world_size, trace.gpu) for rank, trace in traces.items()} == {
        0: (0, 3, 0),
        2: (2, 3, 0),
    }
    assert all(len(trace.steps) > 3 for trace in traces.values())


STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader
loader = StatefulDataLoader(Rows(), 4, True, collate_fn=padded, num_workers=int(sys.argv[1]))
train(loader, 1)
loader.load_state_dict(loader.state_dict())
train(loader, 1)
print("done")
"""


@pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not installed")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_stateful_loader_is_read_ahead_as_well(tmp_path, workers):
    _, printed = run(tmp_path, STATEFUL, (workers,))
    assert "done" in printed and "batch 0 4 300" in printed and len(batches(printed, 0)) < 8


LIGHTNING = """
from lightning import LightningModule, Trainer
class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000))
    def training_step(self, batch, index):
        return self.model(batch).mean()
    def validation_step(self, batch, index):
        print("validation", index, flush=True)
        self.model(batch)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
    def train_dataloader(self):
        return DataLoader(Rows(), 4, shuffle=True, collate_fn=padded, num_workers=2)
    def val_dataloader(self):
        return DataLoader(Rows(), 20, collate_fn=padded, num_workers=2)

quiet = dict(enable_progress_bar=False, logger=False, default_root_dir="/tmp/lightning")
Trainer(max_epochs=2, accelerator="gpu", devices=2, strategy=sys.argv[1], **quiet).fit(Model())
"""


@pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed")
@pytest.mark.parametrize("strategy", ["ddp", "deepspeed_stage_2"])
def test_lightning_trains_and_validates_on_both_ranks(tmp_path, strategy):
    traces, printed = run(tmp_path, LIGHTNING, (strategy,))
    assert {rank: trace.world_size for rank, trace in traces.items()} == {0: 2, 1: 2}
    assert sum("validation" in line for line in printed) > 4  # more than those before training
    assert all("first_evaluate" in trace.phases for trace in traces.values()) and "save" in traces[0].phases
