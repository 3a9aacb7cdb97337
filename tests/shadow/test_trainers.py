"""Other trainers as options of ``training``, predicted as a sweep does: what they used is what was composed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.launch.launch_control import LaunchControl
from memlab.planner.command_point import predict_point
from memlab.rules.unsupported import unsupported
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job

pytestmark = [pytest.mark.shadow, pytest.mark.long(40)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sweeps.md"
MACHINE = ["mode=predict", "hardware=h200_x8", "hardware.gpus=2", "measure=quick", "batch.micro=3"]


@pytest.fixture(autouse=True)
def programs_of_this_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT)


def predicted(folder: Path, *words: str, config_dir: str | None = None):
    config, choices = compose_config([*MACHINE, *words], config_dir)
    assert unsupported(config, None) == []
    record = predict_point(Job(make_plan(config, choices), RunFolder(folder / "run")), LaunchControl())
    assert (record.status, record.reason) == ("ok", None)
    assert (record.config.batch.micro, record.config.zero_stage.stage) == (3, config.zero_stage.stage)
    return record


def test_trl_with_adapters_and_random_data(tmp_path):
    make = [sys.executable, "tests/scripts/make_model_and_data.py", str(tmp_path), "--without-weights"]
    subprocess.run(make, check=True, capture_output=True)
    words = ["training=trl_sft", "model=hf", f"model.path={tmp_path}/llama", "seq_len.tokens=96", "adapter=lora"]
    record = predicted(tmp_path, *words, "checkpointing=full", "training_args.torch_empty_cache_steps=4")
    used = record.config
    assert record.command["disagreements"] == [] and used.seq_len.tokens == 96
    assert (used.adapter.method, used.adapter.target_modules) == ("lora", ["all-linear"])
    assert (used.checkpointing.enabled, used.attention.implementation) == (True, "sdpa")
    assert record.choices["training"] == "trl_sft"


def test_the_trainer_of_the_page(tmp_path):
    (text,) = re.findall(r"```yaml\n(# my/training/loop.yaml\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "loop.yaml").write_text(text)
    words = ["training=loop", "zero_stage=zero3", "seq_len.tokens=64", "offload=optimizer"]
    record = predicted(tmp_path, *words, config_dir=str(tmp_path))
    assert record.command["disagreements"] == [{"key": "seq_len.tokens", "composed": 64, "found": 65}]  # and labels
    assert (record.config.offload.optimizer, record.choices["training"]) == ("cpu", "loop")
    config, _ = compose_config([*MACHINE, *words, "attention=eager"], str(tmp_path))
    assert unsupported(config, None) == [
        "loop has no word for attention.implementation=eager; instead: attention.implementation=sdpa"
    ]
