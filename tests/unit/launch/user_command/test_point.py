"""Sweeps of a user's own command: every point a launch, resumed, searched, and never tabulated as merely composed."""

import shutil
import sys
from pathlib import Path

import pytest
from played_sweeps import measuring

from memlab.core.config import Config, Sweep
from memlab.core.errors import ConfigError
from memlab.core.plan import make_plan
from memlab.launch import preflight
from memlab.launch.search import RunningSearch
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job, SweepObserver
from memlab.system.machine import Machine


@pytest.fixture
def script(tmp_path) -> Path:
    return Path(shutil.copy(Path(__file__).with_name("stand_in.py"), tmp_path / "train.py"))


@pytest.fixture
def notes(tmp_path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def point(config, script, notes, quick):
    """``point(4, "fits=8")``: the configuration of a micro batch, with words behind the command."""

    def build(micro: int = 1, *words: str, **changes) -> Config:
        command = f"{sys.executable} {script} micro={{batch.micro}} notes={notes} {' '.join(words)}"
        own = {"training.loop": "command", "training.command": command, "batch.micro": micro}
        return config({**own, "hardware.gpus": 1, "measure.warmup": 2, "measure.steps": 3, **changes})

    return build


def jobs_of(configs: list[Config], folder: Path) -> list[Job]:
    plans = [make_plan(one, {"model": "tiny", "zero_stage": "zero2", "batch": "b1"}) for one in configs]
    return [Job(plan, RunFolder(folder / plan.run_id)) for plan in plans]


def sweep(configs: list[Config], folder: Path):
    return measuring(Machine(), Sweep(), SweepObserver()).run(jobs_of(configs, folder))


def test_every_point_is_a_launch_and_has_its_steps(point, notes, tmp_path):
    first, second = (result.record for result in sweep([point(1), point(2)], tmp_path / "runs"))
    assert sorted(notes.read_text().split()) == ["1", "2"]
    assert (first.status, second.status) == ("ok", "ok")
    assert second.config.batch.micro == 2 and second.command["steps"] == 5
    assert (len(second.steps["warmup_seconds"]), len(second.steps["seconds"])) == (2, 3)


def test_a_sweep_is_resumed_until_the_script_changes(point, notes, script, tmp_path):
    sweep([point(1), point(2)], tmp_path / "runs")
    assert {result.how for result in sweep([point(1), point(2)], tmp_path / "runs")} == {"done"}
    script.write_text(script.read_text() + "# edited\n")
    assert {result.how for result in sweep([point(1), point(2)], tmp_path / "runs")} == {"measured"}
    assert len(notes.read_text().split()) == 4


def test_what_the_script_used_wins_and_the_disagreement_is_named(point, tmp_path):
    (result,) = sweep([point(8, "most=3")], tmp_path / "runs")
    assert result.record.config.batch.micro == 3
    assert result.record.command["disagreements"] == [{"key": "batch.micro", "composed": 8, "found": 3}]
    assert result.record.choices.get("batch") != "b1"


def test_what_was_composed_but_never_reached_the_script_is_unknown(point, tmp_path):
    (result,) = sweep([point(1)], tmp_path / "runs")
    assert {"model", "zero_stage", "optimizer"} <= set(result.record.unknown_config)
    assert not {"model", "zero_stage"} & result.record.choices.keys()


def test_larger_points_are_implied_by_an_out_of_memory(point, notes, tmp_path):
    results = sweep([point(micro, "fits=2") for micro in (1, 2, 4, 8)], tmp_path / "runs")
    assert [result.record.status for result in results] == ["ok", "ok", "gpu_oom", "gpu_oom"]
    assert [result.how for result in results] == ["measured", "measured", "measured", "implied"]


def test_the_largest_batch_is_searched(point, tmp_path):
    search = measuring(Machine(), Sweep(search="batch"), SweepObserver(), kind=RunningSearch)
    search.run(jobs_of([point(1, "fits=5", **{"sweep.search": "batch"})], tmp_path / "runs"))
    (found,) = search.found.values()
    assert found.best == 5 and found.gave_up is None


def test_a_search_gives_up_where_the_script_does_not_use_the_size(point, tmp_path):
    search = measuring(Machine(), Sweep(search="batch"), SweepObserver(), kind=RunningSearch)
    search.run(jobs_of([point(1, "most=2", **{"sweep.search": "batch"})], tmp_path / "runs"))
    (found,) = search.found.values()
    assert "batch.micro=4 and used 2" in found.gave_up


def test_a_search_over_a_key_without_a_place_is_refused(point):
    with pytest.raises(ConfigError, match=r"'seq_len\.tokens' varies"):
        preflight.check([point(1, **{"sweep.search": "seq_len"})])


def test_a_shared_folder_with_checkpoints_is_seen(point, tmp_path):
    (tmp_path / "out" / "checkpoint-5").mkdir(parents=True)
    assert preflight.shared_checkpoints([point(1, f"out={tmp_path / 'out'}")]) == tmp_path / "out"
    assert preflight.shared_checkpoints([point(1, "out={run_dir}")]) is None
