"""``memlab explain`` and mistakes: one line that says what, where and what to do, before any history is read."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from folders import make_config, make_record, write
from recordings import keep, marks, snapshot

from memlab.cli import remedies
from memlab.cli.main import main
from memlab.runs.folder import RunFolder
from memlab.runs.operator_profile import OperatorProfile, write_operators


def error(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["explain", *words]))
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture
def sweep(tmp_path, monkeypatch) -> Path:
    """A folder with two run folders."""
    monkeypatch.chdir(tmp_path)
    for run in ("zero2", "zero3"):
        (tmp_path / "grid" / run).mkdir(parents=True)
        (tmp_path / "grid" / run / "record.json").write_text("{}")
    return tmp_path / "grid"


@pytest.mark.parametrize(
    ("folder", "advice"),
    [
        ("gird", "gird: no such folder. Did you mean 'grid'?"),
        ("grid/zero", "grid/zero: no such folder. Did you mean 'zero2' or 'zero3'?"),
        ("grid/zero2/record.json", "grid/zero2/record.json: a file. Name the folder that it is in: grid/zero2"),
        ("grid", "grid: no run folder, because it has no record.json. Name one of those in it: zero2, zero3"),
        ("grid/zero2/logs", "grid/zero2/logs: no run folder, because it has no record.json. memlab table FOLDER lists"),
        ("grid/zero3/new", "grid/zero3/new: no run folder, because it has no record.json. Is its run still going?"),
    ],
)
def test_another_folder_is_answered_with_run_folders(capsys, sweep, folder, advice):
    (sweep / "zero2" / "logs").mkdir()
    RunFolder(sweep / "zero3" / "new").claim()
    assert advice in error(capsys, folder)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["grid/zero3", "--at", "backward"], "--at is about one run: name one run folder."),
        (["grid/zero3", "grid/zero2"], "3 run folders: memlab explain takes one, or two to compare."),
        (["--time", "--page", "x.html"], "--page is about memory: leave out --time, which shows times instead."),
        (["--page", "a.html", "--memory-viz", "./a.html"], "a.html: two options name this file."),
        (["--page", "."], "argument --page: . is a folder: name a file in it"),
        (["--page", ""], "argument --page: . is a folder: name a file in it"),
        (
            ["--memory-viz", "grid/zero2/rank0.memory_snapshot.pickle"],
            "grid/zero2/rank0.memory_snapshot.pickle belongs to a run, which would lose it: choose another name",
        ),
        (["--rank", "0", "--time"], "--rank is about memory: leave out --time, which shows times instead."),
        (["--at", "", "--remedies", "2"], "--remedies is about the run's peak: leave out --at."),
        (["--at", "backward", "--remedies", "2"], "--remedies is about the run's peak: leave out --at."),
    ],
)
def test_options_without_effect_are_refused(capsys, sweep, options, advice):
    assert advice in error(capsys, "grid/zero2", *options)


@pytest.fixture
def explained(tmp_path, monkeypatch) -> RunFolder:
    """A run of memlab's own training with a recorded history."""
    config = make_config()
    config.hardware.gpus = 1
    folder = RunFolder(write(tmp_path, make_record(config)))
    keep(folder, 0, snapshot(), marks())
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_files_are_written_if_the_user_ends_the_remedies(capsys, explained, monkeypatch):
    def ends(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(remedies, "print_remedies", ends)
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(explained), "--page", "a.html", "--memory-viz", "a.pickle"])
    assert ended.value.code == 130
    assert Path("a.html").stat().st_size and Path("a.pickle").stat().st_size
    assert "At its peak (forward" in capsys.readouterr().out


def test_a_phase_that_did_not_run_ends_the_command_before_anything_is_written(capsys, explained):
    line = error(capsys, str(explained), "--at", "forwad", "--page", "a.html")
    assert line == "memlab: --at forwad: no phase of this run. Did you mean 'forward'?"
    assert not Path("a.html").exists()


def test_two_measured_runs_have_no_times_to_compare(capsys, explained):
    write_operators(explained.operators_file(0), OperatorProfile(3, [0.1], 0.05, []))
    assert "measured. --time compares a measured run with a prediction" in error(
        capsys, str(explained), str(explained), "--time"
    )


def test_a_run_without_gpus_is_explained_by_its_prediction(capsys, tmp_path):
    record = make_record()
    for rank in record.ranks:
        rank["device"] = "cpu"
    assert "No rank used a GPU, whose memory alone is recorded: explain a prediction of this run." in error(
        capsys, str(write(tmp_path, record))
    )


def test_what_the_meters_saw_grow_needs_no_history(capsys, tmp_path):
    kept_by = {"name": "losses", "where": "train.py:13", "bound": None, "keeps_graph": True, "is_scalar": False}
    growth = {"rank": 0, "bytes_per_step": 1 << 28, "steps_seen": 29, "last_step": 550, "kept_by": kept_by}
    growth |= {"agreed": True, "end_step": None, "out_of_memory_step": 551, "need_bytes": None}
    record = replace(make_record(status="gpu_oom"), command={"words": ["train.py"], "growth": growth})
    with pytest.raises(SystemExit):
        raise SystemExit(main(["explain", str(write(tmp_path, record))]))
    told = capsys.readouterr()
    assert "- 0.25 GiB more a step: train.py:13 keeps tensors of each step in `losses`" in told.out
    assert "no memory history is in this folder" in told.err


def test_a_prediction_without_an_answer_is_not_explained(capsys, tmp_path):
    record = replace(make_record(), source="predicted", status="failed", reason="train.py:11: KeyError")
    assert "nothing was predicted that could be explained. The run ended as failed: train.py:11: KeyError." in error(
        capsys, str(write(tmp_path, record))
    )


def test_a_closed_output_is_no_bug(explained, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(explained), "--remedies", "0"])
    assert ended.value.code == 0
