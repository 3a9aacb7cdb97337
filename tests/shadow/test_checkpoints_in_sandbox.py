"""Checkpoints that transformers' Trainer rotates and resumes from: only the script sees them, with every protection."""

import json
import os
import sys

import pytest
from sandboxed import state

from memlab.cli.compose import compose_config
from memlab.planner.user_command import predict_command
from memlab.runs.folder import RunFolder
from memlab.system import sandbox

pytestmark = [pytest.mark.shadow, pytest.mark.long(60)]

SCRIPT = """
import os
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

def train(steps, resume):
    config = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    arguments = TrainingArguments(
        "out", max_steps=steps, save_steps=1, save_total_limit=2, per_device_train_batch_size=2, report_to=[]
    )
    rows = [{"input_ids": torch.ones(16, dtype=torch.long), "labels": torch.ones(16, dtype=torch.long)}] * 64
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows)
    trainer.train(resume_from_checkpoint=resume)
    found = sorted(os.listdir("out"))
    print("steps", trainer.state.global_step, found, sorted(os.listdir("out/" + found[-1])), flush=True)

train(3, None)
train(5, True)
"""


def test_rotation_and_resume_are_the_same_with_every_protection_and_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    project = tmp_path / "project"
    (project / "out" / "checkpoint-1").mkdir(parents=True)
    (project / "out" / "checkpoint-1" / "model.safetensors").write_bytes(bytes(500))
    (project / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(project)
    before = state(project)
    config, _ = compose_config(["mode=predict", "hardware=h200_x1"])
    found = {}
    monkeypatch.setenv(sandbox.WITHOUT_WALL, sandbox.ALLOWED)
    for protection in (*sandbox.PROTECTIONS, sandbox.UNPROTECTED):
        monkeypatch.setattr(sandbox, "PROTECTIONS", (protection,))
        folder = RunFolder(tmp_path / protection)
        try:
            record = predict_command([sys.executable, "train.py"], config.hardware, folder, steps=None)
        except sandbox.SandboxError:
            continue
        output = (folder.path / "command.log").read_text()
        assert record.status == "ok", output
        lines = [line for line in output.splitlines() if line.startswith("steps")]
        assert [line.split(" [")[0] for line in lines] == ["steps 3", "steps 5"]
        assert "['checkpoint-4', 'checkpoint-5']" in lines[1]
        assert state(project) == before
        effects = record.command["effects"]
        assert (effects["protection"], effects["refused"]) == (protection, [])
        assert [each["folder"] for each in effects["deleted"]] == [str(project / "out" / "checkpoint-1")]
        trace = json.loads((folder.path / "rank0.trace.json").read_text())
        events = [trace[key] for key in ("events_before", "events", "phases", "steps")]
        found[protection] = (lines, effects["written"], events, list(map(device_bytes, record.ranks)))
    first, *others = found.values()
    for other in others:
        assert other == first


def device_bytes(figures: dict) -> dict:
    """Return the figures of GPU memory of a rank, or of a phase of it: those of the host differ from run to run."""
    inner = {name: device_bytes(each) for name, each in figures["phases"].items()} if "phases" in figures else {}
    own = {name: each for name, each in figures.items() if name.endswith("_bytes") and not name.startswith("host")}
    return {**own, **inner}
