"""Optimizer steps in which torch's memory history is recorded: marked, and without times."""

import pytest

pytestmark = pytest.mark.cpu

LOOP = """
import torch
from memlab_attach.meters import start

until = {until}
start._file.session.callbacks.is_recorded = lambda: start._file.session.steps_done < until  # recording needs a GPU
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(net.parameters())
for batch in torch.utils.data.DataLoader(torch.randn(10, 64), batch_size=2):
    net(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("until", "timed"), [(0, 5), (3, 2), (9, 0)])
def test_steps_that_are_recorded_are_marked_and_have_no_times(measure, until, timed):
    run = measure(LOOP.format(until=until))
    assert run.returncode == 0, run.output
    rank, recorded = run.rank(), 5 - timed
    assert [row["recorded"] for row in run.rows()] == [True] * recorded + [False] * timed
    assert [row["seconds"] is None for row in run.rows()] == [row["recorded"] for row in run.rows()]
    assert rank["attached"]["recorded_steps"] == recorded
    assert len([*rank["warmup_seconds"], *rank["step_seconds"]]) == timed
    assert ("step_seconds" in rank["unknown"]) == (timed == 0)
