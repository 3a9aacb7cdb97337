"""The largest batch of a user's script, searched without a GPU: few sizes are run."""

import sys
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.launch.search import RunningSearch
from memlab.planner.command_sweep import CommandPredictions
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job, SweepObserver

pytestmark = [pytest.mark.shadow, pytest.mark.long(60)]

SCRIPT = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.ones(int(sys.argv[1]), 512, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_largest_batch_is_computed_from_three_and_then_run(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = f'training.command="{sys.executable} {tmp_path}/train.py {{batch.micro}}"'
    words = ["mode=predict", "training=command", command, "hardware=t4_x1", "sweep.search=batch", "measure=quick"]
    config, choices = compose_config(words)
    job = Job(make_plan(config, choices), RunFolder(tmp_path / "runs" / "first"))
    search = RunningSearch(CommandPredictions(), config.sweep, SweepObserver())
    search.run([job])
    (found,) = search.found.values()
    assert found.gave_up is None
    assert list(found.tried) == [1, 2, 8, found.best, found.best + 1]
    assert found.best > 100 and found.tried[found.best].summary["verdict"] == "fits"
