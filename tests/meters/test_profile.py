"""torch's profiler around chosen steps of a command."""

import os
from types import SimpleNamespace

import pytest
import torch

from memlab.meters import own_errors, profiler
from memlab.meters.options import PROFILED_STEPS, PROFILER_WARMUP
from memlab.meters.profiler import StepsProfiler
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


def profile_steps(folder) -> None:
    steps = StepsProfiler(lambda: folder / "rank0.json")
    steps.begin()
    for _ in range(PROFILER_WARMUP + PROFILED_STEPS):
        torch.ones(2, 2) @ torch.ones(2, 2)
        steps.step_ends()


def test_a_trace_that_would_fill_the_disk_is_not_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(own_errors, "noted", [])
    monkeypatch.setattr(profiler.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    profile_steps(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memlab: the profiled steps are not kept: their trace takes some 0 MiB while")
    assert [note.partition(":")[0] for note in own_errors.noted] == ["torch's profiler"]


def test_a_disk_that_is_full_all_the_same_gets_its_space_back(tmp_path, monkeypatch, capsys):
    still_open = []

    def write_a_part(running, path: str) -> None:  # as torch does: it prints an error and goes on
        still_open.append(os.open(f"{path}.tmp", os.O_CREAT | os.O_WRONLY))
        os.write(still_open[0], b"half")

    monkeypatch.setattr(own_errors, "noted", [])
    monkeypatch.setattr(profiler.profile, "export_chrome_trace", write_a_part)
    profile_steps(tmp_path)
    assert list(tmp_path.iterdir()) == [] and os.fstat(still_open[0]).st_size == 0
    assert "torch could not write" in capsys.readouterr().err


def test_what_is_written_is_the_packed_trace_alone(tmp_path):
    profile_steps(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.profile.json.gz"]


def test_the_profile_of_a_script_that_profiles_itself_is_left_alone(tmp_path):
    steps = StepsProfiler(lambda: tmp_path / "rank0.json")
    with torch.profiler.profile() as own:
        with pytest.raises(RuntimeError, match="the script profiles itself"):
            steps.begin()
        for _ in range(4):
            torch.ones(2).exp()
            steps.step_ends()
    assert next(each for each in own.key_averages() if each.key == "aten::exp").count == 4
    assert not steps.runs and not list(tmp_path.iterdir())
