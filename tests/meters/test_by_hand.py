"""memlab.measure and memlab.Callback in scripts and notebooks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]

BLOCKS = """
import memlab, torch
from torch.utils.data import DataLoader

net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)

def train(steps):
    for number, x in zip(range(steps), DataLoader(torch.ones(40, 4), batch_size=4)):
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

with memlab.measure("first"):
    train(3)
train(2)
try:
    with memlab.measure("second"):
        train(4)
        raise ValueError("no more")
except ValueError:
    print("goes on")
try:
    with memlab.measure("first"):
        pass
except memlab.core.errors.FolderError as error:
    print(error)
"""

TRAINER = """
import memlab, sys
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=50))
rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 16
arguments = TrainingArguments("out", max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2,
                              save_strategy="no", report_to=[], use_cpu=True)
callbacks = [memlab.Callback()] if sys.argv[1:] == ["by hand"] else []
Trainer(model, arguments, train_dataset=rows, callbacks=callbacks).train()
"""


def run(code: str, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_blocks_in_one_process(tmp_path):
    output = run(BLOCKS, tmp_path).splitlines()
    first, second = (json.loads((tmp_path / name / "record.json").read_text()) for name in ("first", "second"))
    assert (first["status"], len(first["steps"]["rows"])) == ("ok", 3)
    assert (second["status"], len(second["steps"]["rows"])) == ("failed", 4)
    assert second["reason"].endswith("ValueError: no more")
    assert "first_forward" in first["ranks"][0]["attached"]["phases"]
    assert output[0] == "goes on" and "earlier run" in output[1]


@pytest.mark.long(10)
def test_the_callback_measures_what_the_command_measures(tmp_path, measure):
    run(TRAINER, tmp_path, "by hand")
    record = json.loads((tmp_path / "out" / "memlab" / "record.json").read_text())
    by_hand, command = record["ranks"][0]["attached"], measure(TRAINER, environ={"PYTHONPATH": str(ROOT)}).rank()
    assert (record["status"], by_hand["steps"], by_hand["micro_batches"]) == ("ok", 2, 4)
    for fact in ("models", "optimizers", "trainer"):
        assert by_hand[fact] == command["attached"][fact]
    counts = [
        {name: phase["count"] for name, phase in each["phases"].items() if "init" not in name and "build" not in name}
        for each in (by_hand, command["attached"])
    ]
    assert counts[0] == counts[1]


FAILS = TRAINER.replace("from transformers import", "from transformers import TrainerCallback,").replace(
    "\ncallbacks = ",
    """
class Fails(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        raise ValueError("no more")

callbacks = """,
)


def test_the_callback_records_a_training_that_fails(tmp_path):
    code = FAILS.replace("[memlab.Callback()]", "[memlab.Callback(), Fails()]")
    with pytest.raises(AssertionError, match="no more"):
        run(code, tmp_path, "by hand")
    record = json.loads((tmp_path / "out" / "memlab" / "record.json").read_text())
    assert record["status"] == "failed" and record["reason"].endswith("ValueError: no more")
    assert len(record["steps"]["rows"]) == 1


def test_importing_memlab_costs_nothing(tmp_path):
    loaded = run("import memlab, sys; print(*sys.modules)", tmp_path).split()
    assert {name for name in loaded if name.startswith("memlab.")} == set() and "torch" not in loaded
