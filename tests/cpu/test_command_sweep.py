"""Measured sweeps over a training script of one's own, through torch's launcher: searched, interrupted and resumed."""

import json
import signal
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

SCRIPT = """
import pathlib, sys, time, torch
from torch.utils.data import DataLoader
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
micro = int(sys.argv[1])
for batch in DataLoader(torch.randn(1000, 64), batch_size=micro):
    if micro > 2:
        batch = batch.expand(2**44, micro, 64).contiguous()  # more than any machine has
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if pathlib.Path(f"hang{micro}").exists():
        pathlib.Path("hangs").touch()
        time.sleep(600)
"""


@pytest.fixture
def command(tmp_path) -> tuple[str, ...]:
    (tmp_path / "train.py").write_text(SCRIPT)
    launcher = f"{sys.executable} -m torch.distributed.run --nproc_per_node 2 --master_port {{master_port}}"
    return "training=command", f'training.command="{launcher} train.py {{batch.micro}}"'


def records(folder: Path) -> dict[int, dict]:
    """The records of a sweep by micro batch, without that of the longer run that confirms a search."""
    found = [json.loads(path.read_text()) for path in (folder / "sweep").glob("*/record.json")]
    short = [record for record in found if record["command"] is None or record["command"]["steps"] in (None, 5)]
    return {record["config"]["batch"]["micro"]: record for record in short}


@pytest.mark.long(60)
def test_the_largest_batch_of_a_script_is_searched(start, command, tmp_path):
    search = start("-m", *command, "sweep.search=batch", "hydra.sweep.dir=sweep")
    assert search.wait() == 0, search.output
    assert {size: record["status"] for size, record in records(tmp_path).items()} == {
        **{1: "ok", 2: "ok"},
        **{3: "host_oom", 4: "host_oom"},
    }
    assert "largest micro batch that trains: 2, confirmed over 30 steps" in search.output


@pytest.mark.long(50)
def test_after_ctrl_c_a_sweep_goes_on_where_it_was(start, command, tmp_path):
    words = ("-m", *command, "batch.micro=1,2", "hydra.sweep.dir=sweep")
    hang = tmp_path / "hang2"
    hang.touch()
    first = start(*words)
    first.wait_until((tmp_path / "hangs").exists)
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 130, first.output
    kept = records(tmp_path)
    assert (kept[1]["status"], first.alive()) == ("ok", [])
    hang.unlink()
    second = start(*words)
    assert second.wait() == 0, second.output
    assert {size: record["status"] for size, record in records(tmp_path).items()} == {1: "ok", 2: "ok"}
    assert records(tmp_path)[1] == kept[1]
