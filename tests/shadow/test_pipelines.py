"""Ranks that differ: the stages of a pipeline all run, and the integers that they send arrive."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.planner.user_command import predict_command
from memlab.prediction.run_command import LOG, simulate
from memlab.runs.folder import RunFolder
from memlab.simulator.simulation import Node

pytestmark = [pytest.mark.shadow, pytest.mark.long(40)]


@pytest.fixture(autouse=True)
def programs_of_this_environment(monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))


def predicted(folder: Path, lines: str, ranks: int, *arguments: str):
    (folder / "script.py").write_text(lines)
    config, _ = compose_config(["mode=predict", "hardware=h100_x8", f"hardware.gpus={ranks}"])
    words = ["torchrun", "--nproc-per-node", str(ranks), str(folder / "script.py"), *arguments]
    return predict_command(words, config.hardware, RunFolder(folder / "run"), steps=2, timeout_s=300)


BEGIN = """
import os, sys, torch, torch.distributed as dist
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
"""

STAGES = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
width = 1024
model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(1 + (rank == 0))]).cuda()
stage = PipelineStage(model, rank, ranks, torch.device("cuda", rank))
kind = Schedule1F1B if sys.argv[1:] == ["1f1b"] else ScheduleGPipe
schedule = kind(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    rows = torch.ones(4 * 1024, width, device="cuda")
    if rank == 0:
        schedule.step(rows)
    elif rank == ranks - 1:
        schedule.step(target=rows)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
"""

MATRIX = 4 * 1024 * 1024  # bytes of a layer


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_every_stage_of_a_pipeline_has_its_own_memory(tmp_path, schedule):
    record = predicted(tmp_path, BEGIN + STAGES, 3, schedule)
    assert record.status == "ok", record.reason
    assert [rank["same_as_rank"] for rank in record.ranks] == [None] * 3
    layers = [2, 1, 1]
    assert [rank["parameters"] for rank in record.ranks] == [count * 1024 * 1024 for count in layers]
    for rank, count in zip(record.ranks, layers, strict=True):
        kinds = rank["breakdown"]["phases"]["optimizer_step"]
        assert kinds["optimizer states"] == pytest.approx(2 * count * MATRIX, rel=0.01)
        assert kinds["gradients"] == count * MATRIX


MEETS = """
message = torch.tensor([[rank, 7]], device="cuda")
if rank == 1:
    dist.send(message, 0)
    dist.send_object_list(["a word"], 0)
elif rank == 0:
    dist.recv(message, 1)
    words = [None]
    dist.recv_object_list(words, 1)
    assert (message.tolist(), words) == ([[1, 7]], ["a word"])
    {more}
model = torch.nn.Linear(message.sum().item(), 1).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_integers_and_objects_arrive(tmp_path):
    assert predicted(tmp_path, BEGIN + MEETS.format(more=""), 2).status == "ok"


BROADCAST = """
names = [f"run-of-rank-{rank}", rank]
dist.broadcast_object_list(names, src=0)
print(rank, "has", *names, flush=True)
last = [rank]
dist.broadcast_object_list(last, src=1)
print(rank, "keeps", *last, flush=True)
model = torch.nn.Linear(len(names[0]), 1).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.ones(1, len(names[0]), device="cuda")).sum().backward()
    optimizer.step()
"""


def test_objects_of_a_rank_that_runs_reach_the_others(tmp_path):
    record = predicted(tmp_path, BEGIN + BROADCAST, 3)
    assert record.status == "ok", record.reason
    said = (tmp_path / "run" / LOG).read_text().splitlines()
    assert {"0 has run-of-rank-0 0", "2 has run-of-rank-0 0", "0 keeps 0", "2 keeps 2"} <= set(said)


def test_a_rank_does_not_wait_for_one_that_has_ended(tmp_path):
    record = predicted(tmp_path, BEGIN + MEETS.format(more="dist.recv(message, 1)"), 2)
    assert record.status == "failed"
    assert "script.py:16: rank 0 waits for integers of rank 1, which has ended" in record.reason


def test_many_ranks_that_differ_are_refused_with_the_line(tmp_path):
    (tmp_path / "script.py").write_text(BEGIN + "dist.send(torch.ones(1, device='cuda'), 1)\n")
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "16", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    node = Node("NVIDIA H100", 16, 80 << 30)
    done = simulate([sys.executable, str(tmp_path / "script.py")], node, tmp_path, None, {**os.environ, **variables})
    assert "script.py:6: a rank sends to one other, so the 16 ranks differ" in done.last_words


DEEPSPEED = """
import os, torch, deepspeed
from deepspeed.pipe import PipelineModule
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(3)]
model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform")
data = [(torch.ones(1024), torch.ones(1024))] * 64
settings = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), training_data=data, config=settings)
for _ in range(3):
    engine.train_batch()
"""


def test_stages_of_deepspeed(tmp_path):
    record = predicted(tmp_path, DEEPSPEED, 2)
    assert record.status == "ok", record.reason
    assert sorted(rank["parameters"] for rank in record.ranks) == [1024 * 1024, 2 * 1024 * 1024]


MEGATRON = """
from functools import partial
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
parallel_state.initialize_model_parallel(2, 2)
model_parallel_cuda_manual_seed(1)
size = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
config = TransformerConfig(
    num_layers=2, hidden_size=256, num_attention_heads=4, pipeline_dtype=torch.float32, **size,
    deallocate_pipeline_outputs=True,  # as Megatron-LM's own programs do
)
model = GPTModel(
    config, get_gpt_layer_local_spec(), 1024, 64, share_embeddings_and_output_weights=False,
    pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
).cuda()
model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=False), model)
optimizer = torch.optim.Adam(model.parameters())
tokens = torch.ones(2, 64, dtype=torch.int64, device="cuda")
mask = torch.ones(2, 1, 64, 64, dtype=torch.bool, device="cuda").triu(1)
def forward(batches, model):
    out = model(tokens, torch.arange(64, device="cuda").expand(2, -1), mask, labels=tokens)
    return out, lambda out: (out.mean(), {"loss": out.mean()})
for _ in range(3):
    get_forward_backward_func()(
        forward_step_func=forward, data_iterator=None, model=model, num_microbatches=2, seq_length=64,
        micro_batch_size=2, forward_only=False,
    )
    for each in model.parameters():
        each.grad = each.main_grad
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.skipif(not find_spec("megatron"), reason="megatron-core is not installed")
def test_tensor_and_pipeline_parallelism_of_megatron(tmp_path):
    record = predicted(tmp_path, BEGIN + MEGATRON, 4)
    assert record.status == "ok", record.reason
    width, layer = 256, 12 * 256 * 256 // 2  # matrices of a layer, shared by two ranks
    embedding = 1024 * width // 2
    first, _, last, _ = (rank["parameters"] for rank in record.ranks)
    few = 16 * width  # biases and norms
    assert first == pytest.approx(layer + embedding + 64 * width, abs=few)
    assert last == pytest.approx(layer + embedding, abs=few)
    assert [rank["parameters"] for rank in record.ranks] == [first, first, last, last]
