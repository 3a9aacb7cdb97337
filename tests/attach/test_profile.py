"""torch's profiler around chosen steps of a command."""

import pytest

from memlab.runs.operator_profile import summed_up

pytestmark = pytest.mark.cpu

LOOP = """
import torch

net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(net.parameters())
for batch in torch.utils.data.DataLoader(torch.randn(20, 64), batch_size=2):
    net(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_steps_after_a_chosen_one_are_profiled_and_have_no_times(measure):
    run = measure(LOOP, profile=3)
    assert run.returncode == 0, run.output
    rank = run.rank()
    assert (rank["attached"]["meter_errors"], rank["attached"]["profiled_steps"]) == ([], [4, 5, 6])
    assert [row["step"] for row in run.rows() if row["seconds"] is None] == [4, 5, 6]
    assert len(rank["step_seconds"]) == 6
    profile = summed_up(run.folder / "rank0.profile.json.gz")
    assert profile.steps == 2
    calls = {(row.phase, row.operator): row.calls for row in profile.operators}
    assert calls["forward", "aten::addmm"] == 2
    assert ("backward", "aten::mm") in calls and ("optimizer_step", "Optimizer.step#AdamW.step") in calls


def test_a_command_that_ends_before_has_no_profile(measure):
    run = measure(LOOP, profile=9)
    assert run.returncode == 0, run.output
    assert run.rank()["attached"]["profiled_steps"] == [10]
    assert not list(run.folder.glob("*.profile.*"))
