"""A prediction of a command that is interrupted leaves a record, as a measurement does."""

import os
import sys

import pytest

from memlab.core.config import Hardware
from memlab.core.errors import FolderError, MemlabError
from memlab.planner import user_command
from memlab.planner.user_command import HUB, TRACKERS
from memlab.predict.trace.run_command import LOG, SimulationError
from memlab.runs.folder import RunFolder
from memlab.system.deadman import guarded


def test_an_interrupted_prediction_has_a_record(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(user_command, "traced_command", interrupted)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        user_command.predict_command([sys.executable, "train.py"], Hardware(memory_gib=80.0), folder, None)
    record = folder.read_record()
    assert (record.status, record.source, folder.holds_result()) == ("interrupted", "predicted", False)


@pytest.mark.parametrize("words, memory_gib", [(["no-such-program"], 80.0), ([sys.executable], None)])
def test_an_earlier_run_stays_where_nothing_can_run(tmp_path, record, words, memory_gib):
    folder = RunFolder(tmp_path / "run")
    folder.claim()
    folder.finish(record(command={"words": ["python", "train.py"]}))
    with pytest.raises(MemlabError, match=r"no such program|hardware\.memory_gib"):
        user_command.predict_command(words, Hardware(memory_gib=memory_gib), folder, None)
    assert folder.read_record().status == "ok"


def test_a_folder_is_predicted_into_by_one_memlab_at_a_time(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock(), pytest.raises(FolderError, match="another memlab"):
        user_command.predict_command(["python", "train.py"], Hardware(memory_gib=80.0), folder, None)


def test_the_processes_of_a_prediction_see_that_trackers_and_the_hub_are_offline(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with guarded({**os.environ, "WANDB_MODE": "online"}) as environ, pytest.raises(SimulationError):  # no torch
        user_command.traced_command(["env"], Hardware(memory_gib=80.0), folder, None, environ)
    seen = dict(line.split("=", 1) for line in (folder.path / LOG).read_text().splitlines() if "=" in line)
    assert seen["WANDB_MODE"] in ("offline", "disabled")
    assert {name: seen[name] for name in {**HUB, **TRACKERS} if name != "WANDB_MODE"} == {
        name: value for name, value in {**HUB, **TRACKERS}.items() if name != "WANDB_MODE"
    }
