"""Mutated records among good ones: no command ends in a traceback, and no output holds what a terminal would obey.

The ordinary tests take a few mutations; ``make fuzz`` takes 500 of each kind (docs/reliability.md).
"""

import argparse
import importlib
import os
from pathlib import Path

import pytest
from folders import write
from mutations import good, put, put_command

from memlab.cli import main as cli
from memlab.launch.user_command.measure import plan_of_command, write_record
from memlab.launch.user_command.supervise import Finished
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job
from memlab.runs.step_rows import read_command

MUTATIONS = int(os.environ.get("MEMLAB_MUTATIONS", 30))
FIRST_SEED = int(os.environ.get("MEMLAB_FIRST_SEED", 0))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("sweep")
    for record in good():
        write(root, record)
    return root


@pytest.fixture
def bad(sweep):
    """The folder of the mutated record, among the good ones; gone afterwards."""
    folder = sweep / "bad"
    yield folder
    file = folder / "record.json"
    file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
    folder.rmdir()


def commands(sweep: Path, bad: Path, page: Path) -> list[list[str]]:
    """What reads the mutated record: alone, and among others."""
    whole = sorted(str(folder) for folder in sweep.iterdir() if folder != bad)[0]
    return [
        ["show", str(bad)],
        ["table", str(sweep)],
        ["table", str(sweep), "--ranks"],
        ["report", str(sweep), "--output", str(page)],
        ["diff", whole, str(bad)],
        ["diff", "--by", "zero_stage", str(sweep)],
        ["advise", str(sweep), "--samples", "1000", "--seq-len", "512"],
        ["fit", str(sweep)],
    ]


SEEDS = range(FIRST_SEED, FIRST_SEED + MUTATIONS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mutated_record_harms_nothing(sweep, bad, tmp_path, capsys, seed):
    told = put(bad, seed)
    page = tmp_path / "report.html"
    for words in commands(sweep, bad, page):
        code = ended(words, capsys, told)
        assert code == 0 or words[0] in ("show", "diff"), f"{told}: {words[0]} ended with {code}"
    assert not [letter for letter in page.read_text() if is_obeyed(letter)]


@pytest.mark.parametrize("seed", SEEDS[::10])  # charts take some seconds
def test_a_mutated_record_harms_no_figure(sweep, bad, tmp_path, capsys, seed):
    told = put(bad, seed)
    assert ended(["figures", str(sweep), "--output", str(tmp_path / "figures")], capsys, told) == 0, told


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mutated_command_harms_nothing(tmp_path, capsys, seed):
    bad = tmp_path / "bad\x1b]2;x\x07 \x9b2J\x1b[31m[bold]"  # a folder's name is not trusted either
    told, page, table = put_command(bad, seed), tmp_path / "page.html", tmp_path / "table.csv"
    (tmp_path / "good").mkdir()
    RunFolder(tmp_path / "good").finish(good()[0])
    for words in (
        *(["show", str(bad)], ["show", "--all", str(bad)]),
        *(["table", str(tmp_path), f"--{rows}"] for rows in ("ranks", "phases", "steps", "explain")),
        ["table", str(tmp_path), "--csv", str(table)],
        ["report", str(tmp_path), "--output", str(page)],
        ["diff", str(tmp_path / "good"), str(bad)],
        *(["explain", str(bad)], ["explain", str(bad), "--time"], ["explain", str(bad), "--page", str(page)]),
        *(["explain", str(bad), "--memory-viz", str(table)], ["explain", str(bad), "--chrome-trace", str(table)]),
    ):
        ended(words, capsys, told)
        if words[0] in ("explain", "report") and page.exists():
            assert not [letter for letter in page.read_text() if is_obeyed(letter)], f"{told}: {words}"
    folder = RunFolder(bad)
    ranks, rows = read_command(folder)
    words = ["python", "train.py"]
    write_record(Finished(1.0, 0, "ok", None, ranks, rows), Job(plan_of_command(words), folder), words)


def ended(words: list[str], capsys: pytest.CaptureFixture, told: str) -> int:
    """The exit code of a command: as cli.main has it, but for exceptions that nobody foresaw, which fail the test."""
    module = importlib.import_module(f"memlab.cli.commands.{words[0]}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    arguments = parser.parse_args(words[1:])
    try:
        code = cli.guarded(lambda: module.run(arguments))
    except Exception as error:
        raise AssertionError(f"{told}: memlab {words[0]}") from error
    out, err = capsys.readouterr()
    assert not [letter for letter in out + err if is_obeyed(letter)], f"{told}: memlab {words[0]}"
    return code


def is_obeyed(letter: str) -> bool:
    """Whether a terminal, or an editor, takes this letter for an order."""
    return letter != "\n" and not letter.isprintable()


@pytest.fixture(autouse=True)
def bugs_are_raised(monkeypatch):
    def raised(error: Exception) -> int:
        raise error

    monkeypatch.setattr(cli, "report_bug", raised)
