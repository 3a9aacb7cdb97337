"""Data that a script prepares in its prediction: a later prediction of the script finds it, and nothing else does."""

import json
import sys

import pytest

from memlab.cli.compose import compose_config
from memlab.planner.user_command import predict_command
from memlab.runs.folder import RunFolder
from memlab.system.sandbox import NAMESPACES

pytestmark = [pytest.mark.shadow, pytest.mark.long(25)]

SCRIPT = """
import datasets, torch

def tokenize(row):
    print("tokenizes", flush=True)
    return {"ids": [float(len(row["text"]))] * 8}

rows = datasets.load_dataset("json", data_files="rows.jsonl", split="train").map(tokenize).with_format("torch")
model = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for row in rows:
    model(row["ids"].cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_data_is_prepared_once_for_all_predictions_of_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": number * "a"}) + "\n" for number in (1, 2)))
    config, _ = compose_config(["mode=predict", "hardware=h200_x1"])
    tokenized = []
    for name in ("first", "second"):
        folder = RunFolder(tmp_path / name)
        record = predict_command([sys.executable, "train.py"], config.hardware, folder, steps=None)
        if record.command["effects"]["protection"] != NAMESPACES:
            pytest.skip("This system does not let its users make namespaces with overlays.")
        output = (folder.path / "command.log").read_text()
        assert record.status == "ok", output
        tokenized.append(output.count("tokenizes"))
    assert tokenized == [2, 0] and not (tmp_path / "hf").exists()
