"""Secrets of a real training: none of them is ever in the run folder, not even while it runs or after a kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memlab.system.deadman import marked_by

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]
MARK = "MEMLAB_TEST_RUN"
SECRET = {name: f"s3cr3t-{name}" for name in ("option", "equals", "variable", "argument", "config", "url")}
SECRET["token"] = "hf_" + "A1b2" * 8

SCRIPT = f"""
import os, sys, time
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

class Waits(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2 and "wait" in sys.argv:
            print("key", os.environ["WANDB_API_KEY"], sys.argv, "{SECRET["token"]}", flush=True)
            open("ready", "w").close()
            time.sleep(300)

shape = {{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}}
model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=50, api_key="{SECRET["config"]}"))
rows = [{{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}}] * 16
arguments = TrainingArguments("out", max_steps=3, per_device_train_batch_size=2, save_strategy="no", report_to=[],
                              use_cpu=True, hub_token="{SECRET["argument"]}", run_name="{SECRET["token"]}")
Trainer(model, arguments, train_dataset=rows, callbacks=[Waits()]).train()
print("key", os.environ["WANDB_API_KEY"], sys.argv, "{SECRET["token"]}")
raise ValueError("no answer from https://me:{SECRET["url"]}@host/x with {SECRET["token"]}")
"""

WORDS = ["--api_key", SECRET["option"], f"--hub_token={SECRET['equals']}", f"--run={SECRET['token']}"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    def start_measuring(*words: str) -> subprocess.Popen:
        (tmp_path / "script.py").write_text(SCRIPT)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), MARK: str(tmp_path)}
        environment |= {"WANDB_API_KEY": SECRET["variable"], "HF_ENDPOINT": f"https://me:{SECRET['url']}@host"}
        command = ["-m", "memlab", "measure", "--output", "run", "--", sys.executable, "script.py", *words, *WORDS]
        return subprocess.Popen(
            [sys.executable, *command], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    yield start_measuring
    for pid in marked_by(MARK, str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


def secrets_in(folder: Path) -> set[tuple[str, str]]:
    """Return each file of the folder that holds a secret, with the name of the secret."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {(str(path), name) for path, text in files.items() for name, it in SECRET.items() if it.encode() in text}


def test_after_the_end(start, tmp_path):
    output, _ = start().communicate(timeout=300)
    assert SECRET["variable"].encode() in output, "the terminal shows what the script prints"
    assert secrets_in(tmp_path / "run") == set()
    record = (tmp_path / "run" / "record.json").read_text()
    assert "ValueError: no answer from https://<redacted>@host/x" in record and "hub_token" in record


def test_while_it_runs_and_after_a_kill_of_memlab(start, tmp_path):
    memlab = start("wait")
    deadline = time.monotonic() + 300
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (tmp_path / "run" / "rank0.json").exists()
    assert secrets_in(tmp_path / "run") == set()
    memlab.kill()
    memlab.communicate()
    while any(marked_by(MARK, str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "key <redacted>" in (tmp_path / "run" / "logs" / "launcher.log").read_text()
    assert secrets_in(tmp_path / "run") == set()
