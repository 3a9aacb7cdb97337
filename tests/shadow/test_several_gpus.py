"""Several GPUs in one process: each has its own memory, predicted and measured alike."""

import os
import sys
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.core.sizes import UNLIMITED
from memlab.planner.user_command import predict_command
from memlab.prediction.memory.replay import replay
from memlab.report.screen import screen
from memlab.runs.folder import RunFolder
from memlab.runs.step_rows import read_command
from memlab.simulator.allocator import Options
from tests.shadow.model_folder import model_folder
from tests.shadow.one_rank import NODE, simulate

pytestmark = [pytest.mark.shadow, pytest.mark.long(8)]

MIB = 1 << 20

LOOP = """
import torch
first = torch.nn.Linear(2048, 2048, bias=False, device="cuda:0")
second = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False, device="cuda:1") for _ in range(2)))
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], fused=True)
for step in range(3):
    second(first(torch.ones(256, 2048, device="cuda:0")).to("cuda:1")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

WEIGHT, WORKSPACE = 16 * MIB, 32 * MIB
STEP = 512  # Adam's number of steps, for each weight


def predicted(folder: Path, *hardware: str):
    (folder / "loop.py").write_text(LOOP)
    config, _ = compose_config(["mode=predict", "hardware=h100_x8", "hardware.gpus=2", *hardware])
    return predict_command([sys.executable, str(folder / "loop.py")], config.hardware, RunFolder(folder / "run"), None)


def test_each_gpu_has_the_weights_gradients_and_states_of_its_layers(tmp_path):
    record = predicted(tmp_path)
    assert (record.status, record.summary["verdict"], record.config.hardware.gpus) == ("ok", "fits", 2)
    assert [(rank["rank"], rank["device"], rank["verdict"]) for rank in record.ranks] == [
        (0, "cuda:0", "fits"),
        (1, "cuda:1", "fits"),
    ]
    for rank, layers in zip(record.ranks, (1, 2), strict=True):
        held = layers * (4 * WEIGHT + STEP) + 2 * WORKSPACE  # of the threads of forward and backward
        assert rank["phases"]["first_optimizer_step"]["peak_allocated_bytes"] == held
        assert rank["phases"]["optimizer_step"]["end_allocated_bytes"] == held
        assert rank["phases"]["model_build"]["peak_allocated_bytes"] == layers * WEIGHT
        kinds = rank["breakdown"]["phases"]["first_optimizer_step"]
        assert (kinds["weights"], kinds["gradients"]) == (layers * WEIGHT, layers * WEIGHT)
        assert (kinds["optimizer states"], kinds["kernel workspaces"]) == (2 * layers * WEIGHT, 2 * WORKSPACE)
    assert record.summary["peak_allocated_bytes"]["max"] == record.ranks[1]["peak_allocated_bytes"]
    assert record.command["disagreements"] == [], "both GPUs that are paid are used"
    assert " on cuda:1, " in screen(record, RunFolder(tmp_path / "run"))[0]


def test_the_command_fits_if_each_gpu_has_room(tmp_path):
    record = predicted(tmp_path, "hardware.memory_gib=0.9")
    assert (record.status, record.summary["verdict"]) == ("gpu_oom", "does_not_fit")
    assert [rank["status"] for rank in record.ranks] == ["ok", "gpu_oom"]
    assert "out of memory on cuda:1 in" in " ".join(screen(record, RunFolder(tmp_path / "run")))


DEVICE_MAP = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], device_map="auto")
print(sorted({str(device) for device in model.hf_device_map.values()}))
optimizer = torch.optim.SGD(model.parameters())
for step in range(2):
    ids = torch.zeros(2, 64, dtype=torch.long, device="cuda:0")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
sizes = [0, 0]
for parameter in model.parameters():
    sizes[parameter.device.index] += parameter.numel() * parameter.element_size()
print(sizes, [torch.cuda.memory_allocated(gpu) >= 2 * sizes[gpu] for gpu in range(2)])
for read in (torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved):
    print(read.__name__, [read(gpu) for gpu in range(2)])
"""


def test_device_map_auto_is_predicted_and_measured_in_the_same_form(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"hidden_size": 512, "num_hidden_layers": 4, "intermediate_size": 1024, "dtype": "float32"}
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_folder(tmp_path / "config", **shape)))
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "script.py").write_text(DEVICE_MAP)
    words = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "model")]
    simulated = simulate(words, NODE, tmp_path, None, os.environ)
    assert simulated.returncode == 0, simulated.last_words
    printed = (tmp_path / "command.log").read_text()
    assert "['0', '1']" in printed and "[True, True]" in printed
    likely = [replay(trace, Options(), UNLIMITED) for trace in simulated.traces.values()]
    for kind in ("allocated", "reserved"):  # what a script reads of the simulated GPUs
        assert f"max_memory_{kind} {[getattr(each, f'peak_{kind}') for each in likely]}" in printed
    measured, _ = read_command(RunFolder(tmp_path))
    assert [(rank["rank"], rank["device"]) for rank in measured] == [(0, "cuda:0"), (1, "cuda:1")]
    assert [rank["attached"]["world_size"] for rank in measured] == [2, 2]
