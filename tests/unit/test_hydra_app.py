"""From Hydra's batch to jobs: folders, repeats, what is saved beside each, and a multirun that only shows."""

import signal
import sys
from pathlib import Path

import pytest

from memlab import cli, hydra_app
from memlab.compose import check_overrides
from memlab.hydra_app import with_repeats
from memlab.launch import run
from memlab.launch.sweep import Result
from memlab.record import RunFolder, read_json


def refuse_to_start(*_):
    raise AssertionError("nothing may be started")


@pytest.fixture
def multirun(tmp_path, monkeypatch, capfd):
    """``multirun("seed=1,2")``: exit code and lines of launch.py -m with these words; nothing may be started."""
    monkeypatch.setattr(hydra_app, "_exit_codes", [])
    monkeypatch.setattr(hydra_app, "_refusals", [])
    monkeypatch.setattr(run, "command", refuse_to_start)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.chdir(tmp_path)

    def sweep(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["launch.py", "-m", "hardware=cpu", "name=mine", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.launch()
        return left.value.code or 0, capfd.readouterr().out

    return sweep


def records(folder: Path) -> list[Path]:
    return sorted(folder.glob("outputs/mine/*/record.json"))


def test_a_dry_run_shows_the_jobs_and_starts_nothing(multirun, tmp_path):
    code, out = multirun("seq_len.tokens=8,16", "offload=none,param", "sweep.dry_run=true")
    assert code == 0
    rows = [line for line in out.splitlines() if "tiny-zero2" in line]
    assert len(rows) == 4
    assert sum("to run" in row for row in rows) == sum("unsupported" in row for row in rows) == 2
    assert "2 to run in 1 launches, 2 known" in out
    assert not list(tmp_path.rglob("*.json"))


def test_a_dry_run_knows_what_is_done(multirun, tmp_path):
    multirun("seed=1", "offload=param")
    assert len(records(tmp_path)) == 1
    shown = multirun("seed=1", "offload=param", "sweep.dry_run=true")[1]
    assert "0 to run in 0 launches, 1 known" in shown and "unsupported" in shown


def test_a_sweep_of_what_means_nothing_is_complete_at_once(multirun, tmp_path):
    code, out = multirun("seed=1,2", "offload=param")
    assert code == 0
    assert "2 jobs: 2 unsupported" in out and "next: " in out
    for path in records(tmp_path):
        saved = read_json(path)
        hydra = path.parent / ".hydra"
        assert f"seed: {saved['config']['seed']}" in (hydra / "config.yaml").read_text()
        assert f"- seed={saved['config']['seed']}" in (hydra / "overrides.yaml").read_text()
        assert str(path.parent) in (hydra / "hydra.yaml").read_text()
        assert saved["choices"]["offload"] == "param"


def test_a_secret_among_the_words_reaches_no_file_of_a_sweep(multirun, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "open-sesame")
    multirun("seed=1", "offload=param", "data.path=/x/open-sesame")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 8
    assert not [str(path) for path in files if "sesame" in path.read_text()]


def test_a_sweep_into_a_folder_of_ones_own(multirun, tmp_path):
    multirun("seed=1,2", "offload=param", "hydra.sweep.dir=mine", "hydra.sweep.subdir='${seed}'")
    assert [RunFolder(tmp_path / "mine" / seed).read_record().config["seed"] for seed in "12"] == [1, 2]


@pytest.mark.parametrize("word", ["sweep=tiny_cpu", "+search=batch", "sweep=none"])
def test_the_groups_of_sweeps_are_known(word):
    check_overrides([word])


def test_every_repeat_is_a_job_with_a_folder_of_its_own(config, tmp_path):
    jobs = with_repeats(config({"measure.repeats": 3}), {}, RunFolder(tmp_path / "run"))
    assert [job.folder.path.name for job in jobs] == ["run", "run-r2", "run-r3"]
    assert [job.config.measure.repeat for job in jobs] == [1, 2, 3]
    assert len({job.plan.run_id for job in jobs}) == 3
    assert len({job.subject_key for job in jobs}) == 1


@pytest.mark.parametrize(
    ("statuses", "interrupted", "code"),
    [
        (["ok", "gpu_oom", "unsupported"], False, 0),
        (["ok", "timeout"], False, 1),
        (["ok", None], False, 1),
        (["ok", None], True, 130),
        ([], False, 0),
    ],
)
def test_the_exit_code_of_a_sweep_says_whether_anything_is_left_to_do(record, statuses, interrupted, code):
    class Sweep:
        pass

    Sweep.interrupted = interrupted
    results = [Result(None, status and record(status=status), "measured") for status in statuses]
    assert hydra_app._sweep_exit_code(Sweep, results) == code
