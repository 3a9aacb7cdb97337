"""A prediction of a command that is interrupted leaves a record, as a measurement does."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from memlab.core.config import Config, Hardware
from memlab.core.errors import FolderError, MemlabError, ShadowError
from memlab.planner import user_command
from memlab.planner.user_command import HUB, TRACKERS, CommandRun
from memlab.prediction.run_command import LOG, Simulated, SimulationError
from memlab.runs.folder import RunFolder
from memlab.simulator import simulation
from memlab.system.deadman import TOKEN_VARIABLE, guarded
from memlab.system.sandbox import limits

TOKEN = {TOKEN_VARIABLE: "token"}


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
    with pytest.raises(MemlabError, match=r"no such program|hardware\.memory_gib"):
        user_command.predict_command(words, Hardware(memory_gib=memory_gib), RunFolder(tmp_path / "new"), None)
    assert not (tmp_path / "new").exists()


def test_a_folder_is_predicted_into_by_one_memlab_at_a_time(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock(), pytest.raises(FolderError, match="another memlab"):
        user_command.predict_command([sys.executable, "train.py"], Hardware(memory_gib=80.0), folder, None)


def test_the_processes_of_a_prediction_see_that_trackers_and_the_hub_are_offline(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with guarded({**os.environ, "WANDB_MODE": "online"}) as environ, pytest.raises(SimulationError):  # no torch
        user_command.traced_command(CommandRun(["env"], Hardware(memory_gib=80.0), environ), folder)
    seen = dict(line.split("=", 1) for line in (folder.path / LOG).read_text().splitlines() if "=" in line)
    assert seen["WANDB_MODE"] in ("offline", "disabled")
    assert {name: seen[name] for name in {**HUB, **TRACKERS} if name != "WANDB_MODE"} == {
        name: value for name, value in {**HUB, **TRACKERS}.items() if name != "WANDB_MODE"
    }


def test_a_script_that_takes_too_much_has_a_record_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MOST_PROCESSES", 0)
    folder = RunFolder(tmp_path / "run")
    record = user_command.predict_command(["sleep", "60"], Hardware(memory_gib=80.0), folder, None)
    assert record.status == "failed" and "processes; at most 0 may run" in record.reason
    assert folder.read_record().reason == record.reason


def test_the_rank_that_failed_first_is_named_and_not_one_that_its_launcher_ended():
    killed = {"rank": 0, "status": "interrupted", "reason": "killed", "attached": {"failed_at": None}}
    failed = {"rank": 1, "status": "failed", "reason": "ValueError: no", "attached": {"failed_at": 3.0}}
    reason = user_command._failure(Simulated(1, "", {}), {0: killed, 1: failed})
    assert reason == "on simulated GPUs, rank 1: ValueError: no"


TRACED: Any = SimpleNamespace(config=Config(), traces={0: SimpleNamespace(choices=["routing"], events=[])})
"""A command that has chosen experts."""


@pytest.fixture
def folder(tmp_path, monkeypatch, record) -> RunFolder:
    """A run folder, for a prediction without ranks."""
    monkeypatch.setattr(user_command, "record_of_traces", lambda traced: (record(ranks=[], command={"words": []}), {}))
    monkeypatch.setattr(user_command, "keep_what_was_found", lambda ranks, folder: None)
    folder = RunFolder(tmp_path / "run")
    folder.claim()
    return folder


def test_the_folder_of_another_choice_is_no_link_that_a_script_left(tmp_path, monkeypatch, folder):
    places = []

    def traced(run, folder):
        places.append(folder.path)
        if len(places) == 2:
            raise ShadowError("seen")
        return TRACED

    monkeypatch.setattr(user_command, "traced_command", traced)
    (tmp_path / "precious").mkdir()
    (folder.path / "other_end_routing").symlink_to(tmp_path / "precious")
    found = user_command.predicted_record(CommandRun(["train.py"], Hardware(memory_gib=80.0), TOKEN), folder)
    assert places == [folder.path, folder.path / "other_end_routing"]
    assert found.command["ranges"] == [{"choice": "routing", "failure": "seen"}]


@pytest.mark.parametrize("has_free_core", [True, False])
def test_the_other_end_begins_with_the_choice_where_a_core_is_free(monkeypatch, folder, has_free_core):
    monkeypatch.setattr(user_command, "POLL_S", 0.01)
    began, tokens = threading.Event(), []

    def traced(run, folder):
        tokens.append(run.environ[TOKEN_VARIABLE])
        if run.other_end is None:
            with monkeypatch.context() as process:
                process.setenv(simulation.VARIABLE, str(folder.own_folder(".attach")))
                simulation.note_choice("routing")
            assert began.wait(60 if has_free_core else 0.1) == has_free_core
        else:
            began.set()
            raise ShadowError("seen")
        return TRACED

    monkeypatch.setattr(user_command, "traced_command", traced)
    run = CommandRun(["train.py"], Hardware(memory_gib=80.0), TOKEN)
    found = user_command.predicted_record(run, folder, has_free_core=has_free_core)
    assert [each["choice"] for each in found.command["ranges"]] == ["routing"]
    assert tokens == ["token-script", "token-routing"]


def test_the_other_end_runs_beside_the_replays_and_ends_with_what_interrupts_them(tmp_path, monkeypatch):
    began, ended = threading.Event(), threading.Event()

    def traced(run, folder):
        if run.other_end is not None:
            process = subprocess.Popen(["sleep", "600"], env=run.environ)
            began.set()
            process.wait()
            ended.set()
        return TRACED

    def interrupted(traced):
        assert began.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(user_command, "traced_command", traced)
    monkeypatch.setattr(user_command, "record_of_traces", interrupted)
    with pytest.raises(KeyboardInterrupt):
        user_command.predict_command([sys.executable], Hardware(memory_gib=80.0), RunFolder(tmp_path / "run"), None)
    assert ended.is_set()
