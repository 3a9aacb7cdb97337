"""The table and the page that a sweep leaves in its folder, however it ended."""

import csv
import io
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console
from sweeps import add_point

from memlab.analyse.collect import collect
from memlab.cli import main as cli
from memlab.launch.sweep import RunningSweep
from memlab.report.sweep_text import leave_table_and_page

FOLDER = Path("outputs/mine")
NAMES = ("table.csv", "report.html")


@pytest.fixture
def launch(tmp_path, monkeypatch, capfd):
    """``launch("seed=1,2")``: exit code and lines of launch.py -m; its points mean nothing, so no rank starts."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name, value in {"HYDRA_FULL_ERROR": "1", "COLUMNS": "200", "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, multirun: bool = True) -> tuple[int, list[str]]:
        always = ("hardware=cpu", "name=mine", "offload=param")
        monkeypatch.setattr(sys, "argv", ["launch.py", *["-m"] * multirun, *always, *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.launch()
        return left.value.code or 0, capfd.readouterr().out.splitlines()

    return run


def rows(folder: Path = FOLDER) -> list[dict[str, str]]:
    with (folder / NAMES[0]).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("mode", "count"), [("predict", 2), ("measure,predict", 4)])
def test_a_sweep_leaves_its_table_and_its_page_and_names_them_last(launch, mode, count):
    code, lines = launch("seed=1,2", f"mode={mode}")
    assert code == 0
    assert any(line.startswith(f"{count} points; ") for line in lines)
    assert lines[-2:] == [f"table: {FOLDER / NAMES[0]}", f"page: {FOLDER / NAMES[1]}"]
    assert len(rows()) == count and {row["source"] for row in rows()} <= {"measured", "predicted"}
    assert "<title>mine - memlab</title>" in (FOLDER / NAMES[1]).read_text()


def test_a_resumed_sweep_writes_them_anew_and_takes_neither_for_a_run(launch):
    launch("seed=1,2")
    assert launch("seed=2,3")[1][-2].startswith("table: ")
    assert len(rows()) == 3
    assert collect([FOLDER]).skipped == []


def test_a_dry_run_writes_neither(launch):
    assert launch("seed=1,2", "sweep.dry_run=true")[0] == 0
    assert not [name for name in NAMES if (FOLDER / name).exists()]


def test_repeats_of_one_run_leave_them_beside_its_folders(launch):
    assert launch("measure.repeats=2", multirun=False)[1][-1] == f"page: {Path.cwd() / FOLDER / NAMES[1]}"
    assert len(rows()) == 2
    assert launch("measure.repeats=2", multirun=False)[1][-1].startswith("page: ")


def test_repeats_among_the_files_of_somebody_else_leave_them_alone(launch):
    theirs = Path("theirs/table.csv")
    theirs.parent.mkdir()
    theirs.write_text("mine")
    code, lines = launch("measure.repeats=2", "hydra.run.dir=theirs/run", multirun=False)
    assert code == 0 and lines[-1].startswith("No table and no page: ")
    assert theirs.read_text() == "mine"
    assert sorted(path.name for path in theirs.parent.iterdir()) == ["run", "run-r2", "table.csv"]


def interrupted(*_) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("mode", ["measure", "predict"])
def test_an_interrupted_sweep_leaves_what_is_done(launch, monkeypatch, mode):
    launch("seed=1,2", f"mode={mode}")
    (FOLDER / NAMES[0]).unlink()
    monkeypatch.setattr(RunningSweep, "_run_all", interrupted)
    code, lines = launch("seed=1,2,3", f"mode={mode}")
    assert code == 130 and lines[-1].startswith("page: ")
    assert len(rows()) == 3


def left(folder: Path) -> list[str]:
    """The lines about what was left in a folder."""
    console = Console(file=io.StringIO(), width=200)
    leave_table_and_page(folder, console)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("trouble", [OSError(28, "No space left"), RuntimeError("odd\nlines"), KeyboardInterrupt()])
def test_what_stands_in_the_way_is_one_line(tmp_path, monkeypatch, trouble):
    def fail(*_):
        raise trouble

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("memlab.report.page.write_page", fail)
    add_point(tmp_path / "runs", 128)
    *_, line = left(tmp_path / "runs")
    assert line.startswith("No table and no page: ")
    assert len(collect([tmp_path / "runs"]).runs) == 1


def test_runs_of_unknown_batch_and_length_have_a_table_and_no_page(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("memlab.analyse.identity.has_point", lambda run: False)
    add_point(tmp_path / "runs", 128)
    assert left(tmp_path / "runs")[-1] == f"table: {tmp_path / 'runs' / NAMES[0]}"
    assert not (tmp_path / "runs" / NAMES[1]).exists()


def test_links_that_a_script_left_in_their_place_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    add_point(tmp_path / "runs", 128)
    (tmp_path / "precious").write_text("mine")
    left(tmp_path / "runs")
    for name in NAMES:
        (tmp_path / "runs" / name).unlink()
        (tmp_path / "runs" / name).symlink_to(tmp_path / "precious")
    assert left(tmp_path / "runs")[-1].startswith("page: ")
    assert (tmp_path / "precious").read_text() == "mine"


def test_it_changes_no_exit_code(launch, monkeypatch):
    monkeypatch.setattr("memlab.report.page.write_page", lambda *_: 1 / 0)
    code, lines = launch("seed=1,2")
    assert code == 0 and any(line.startswith("run folders: ") for line in lines) and "ZeroDivisionError" in lines[-1]


def test_a_folder_without_any_run_is_left_alone(tmp_path):
    assert left(tmp_path) == [] and not list(tmp_path.iterdir())
