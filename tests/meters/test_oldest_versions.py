"""Libraries of the oldest versions, in an environment of their own: ``make oldest``."""

import os
import shutil
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif("MEMLAB_TEST_PYTHON" not in os.environ, reason="make oldest makes the environment"),
]

TRAINER = """
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=50))
rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 16
arguments = TrainingArguments("out", max_steps=2, per_device_train_batch_size=2, save_steps=1, eval_strategy="steps",
                              eval_steps=1, report_to=[], use_cpu=True)
Trainer(model, arguments, train_dataset=rows, eval_dataset=rows).train()
"""

ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(net.parameters())
loader = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for x in loader:
    with accelerator.accumulate(net):
        accelerator.backward(net(x).sum())
        optimizer.step()
        optimizer.zero_grad()
accelerator.save_state("out")
"""

STEP = {"forward", "backward", "optimizer_step"}


@pytest.mark.parametrize(
    ("code", "words", "ranks", "steps", "phases"),
    [
        (TRAINER, [], 1, 2, {"engine_init", "evaluate", "save"}),
        (ACCELERATE, [], 2, 2, {"engine_init", "save"}),
        ((SCRIPTS / "ddp.py").read_text(), ["--steps", "2"], 2, 2, {"engine_init"}),
        ((SCRIPTS / "deepspeed_loop.py").read_text(), ["--steps", "2", "--stage", "3"], 2, 2, {"engine_init"}),
    ],
    ids=["trainer", "accelerate", "ddp", "deepspeed"],
)
def test_steps_and_phases_are_seen(measure, tmp_path, code, words, ranks, steps, phases):
    shutil.copy(SCRIPTS / "gpt.py", tmp_path)
    environ = {
        "PYTHONPATH": str(tmp_path),
        "PATH": f"{Path(os.environ['MEMLAB_TEST_PYTHON']).parent}:{os.environ['PATH']}",
    }
    run = measure(code, *words, ranks=ranks, environ=environ)
    assert run.returncode == 0, run.output
    for number in range(ranks):
        attached = run.rank(number)["attached"]
        assert (run.rank(number)["status"], attached["steps"], attached["meter_errors"]) == ("ok", steps, [])
        seen = {phase.removeprefix("first_") for phase in attached["phases"]}
        assert seen >= STEP | phases and "resume" not in seen
