"""What a prediction cannot follow after the steps of a training does not take the answer for these steps away."""

import os
import sys
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.cli.exit_codes import exit_code
from memlab.core.record import Record
from memlab.planner.user_command import predict_command
from memlab.report.screen import screen
from memlab.runs.folder import RunFolder

pytestmark = [pytest.mark.shadow, pytest.mark.long(8)]

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader

class Unpicklable:
    def __reduce__(self):
        raise TypeError("cannot pickle this")

wrong = sys.argv[1]
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for number, batch in enumerate(DataLoader(torch.zeros(80, 64), 4)):
    model(batch.cuda()).sum().backward()
    optimizer.step()
    if wrong == "first step" or (wrong == "step" and number == 1):
        torch.cuda.CUDAGraph()
    if wrong == "own" and number == 1:
        raise ValueError("no luck")
if wrong == "evaluate":
    model.eval()
    results = [model(batch.cuda()) for batch in DataLoader(torch.zeros(400, 64), 4)]
    assert len(results) == 100, "results are missing"
torch.save({"model": model.state_dict(), "rest": Unpicklable()}, "model.pt")
"""


def predicted(folder: Path, *words: str) -> tuple[Record, str]:
    """Return the record of a command of Python, and the screen with its answer."""
    config, _ = compose_config(["mode=predict", "training=command", "training.command=''", "hardware=h200_x1"])
    run = RunFolder(folder / "run")
    record = predict_command([sys.executable, *words], config.hardware, run, None)
    return record, " ".join(screen(record, run))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return "script.py"


@pytest.mark.parametrize(
    "wrong, phase, reason, steps",
    [
        ("evaluate", "evaluate", "AssertionError: results are missing", 3),
        ("save", "save", "TypeError: cannot pickle this", 3),
        ("step", None, "torch.cuda.CUDAGraph keeps what it captures", 2),
    ],
)
def test_the_answer_is_for_the_steps_that_were_and_says_so(tmp_path, script, wrong, phase, reason, steps):
    record, shown = predicted(tmp_path, script, wrong)
    early = record.command["ended_early"]
    line = next(number for number, text in enumerate(SCRIPT.splitlines(), 1) if _MARKS[wrong] in text)
    assert (record.status, exit_code(record), early["phase"], early["steps"]) == ("ok", 0, phase, steps)
    assert early["where"].endswith(f"script.py:{line}") and reason in early["reason"]
    assert f"The answer is for the first {steps} steps alone: {phase or 'the script'} at script.py:{line}" in shown
    assert RunFolder(tmp_path / "run").read_record() == record


_MARKS = {"evaluate": "assert", "save": "raise TypeError", "step": "CUDAGraph"}


@pytest.mark.parametrize("wrong, told", [("first step", "torch.cuda.CUDAGraph keeps"), ("own", "ValueError: no luck")])
def test_a_first_step_and_a_mistake_of_the_script_have_no_answer(tmp_path, script, wrong, told):
    record, shown = predicted(tmp_path, script, wrong)
    assert record.status == "failed" and "ended_early" not in record.command
    assert shown.startswith("No answer: on simulated GPUs, rank 0") and told in shown and "output is in" not in shown


def test_the_program_of_a_package_is_no_line_of_the_user(tmp_path):
    program = Path(sys.executable).with_name(f"program-{os.getpid()}")
    program.write_text(f"#!{sys.executable}\nimport torch\ntorch.cuda.CUDAGraph()\n")
    try:
        record, _ = predicted(tmp_path, str(program))
    finally:
        program.unlink()
    assert program.name not in record.reason and "torch.cuda.CUDAGraph keeps" in record.reason
