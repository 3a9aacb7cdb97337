"""An exception that nobody foresaw: three lines, and a log with the traceback and without secrets."""

import os
import re
import tempfile
from pathlib import Path

import pytest

from memlab.cli import main as cli


def fail() -> int:
    raise LookupError("no \x1b[2J such\nthing: open sesame")


@pytest.fixture
def logs(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MY_TOKEN", "open sesame")
    return tmp_path


def test_a_bug_is_three_lines_and_a_log(logs, capsys):
    assert cli.guarded(fail) == os.EX_SOFTWARE == 70
    what, where, log = capsys.readouterr().err.splitlines()
    mark = "\N{REPLACEMENT CHARACTER}"
    assert what == f"memlab: unexpected LookupError: no {mark}[2J such{mark}thing: <redacted>"
    assert "report it" in where
    (file,) = logs.iterdir()
    assert log == f"memlab: log: {file} (MEMLAB_TRACEBACK=1 prints it)"
    text = file.read_text()
    assert 'in fail\n    raise LookupError("no' in text and "memlab 0." in text
    assert "sesame" not in text


def test_the_traceback_is_printed_for_who_wants_it(logs, capsys, monkeypatch):
    monkeypatch.setenv("MEMLAB_TRACEBACK", "1")
    assert cli.guarded(fail) == 70
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert len(re.findall("^memlab: ", err, re.MULTILINE)) == 3


def test_without_room_for_the_log_the_lines_are_still_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert cli.guarded(fail) == 70
    assert capsys.readouterr().err.splitlines()[-1].startswith("memlab: log: could not be written: No such file")


def test_a_bug_while_a_command_begins_is_caught_too(logs, capsys, monkeypatch):
    from memlab.cli.commands import show

    monkeypatch.setattr(show, "add_arguments", lambda parser: fail())
    with pytest.raises(SystemExit) as left:
        cli.main(["show", "x"])
    assert left.value.code == 70
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_bug_in_the_task_of_hydra_is_one_of_memlabs(logs, capsys, monkeypatch, tmp_path):
    from memlab.cli import experiments

    monkeypatch.setattr(experiments, "run_composed", lambda composed: fail())
    monkeypatch.setattr("sys.argv", ["launch.py", "hardware=cpu", f"hydra.run.dir={tmp_path}/run"])
    with pytest.raises(SystemExit) as left:
        cli.launch()
    assert left.value.code == 70
    assert len(capsys.readouterr().err.splitlines()) == 3
