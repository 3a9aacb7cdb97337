"""``memlab explain`` and mistakes: one line that says what, where and what to do, before any history is read."""

from pathlib import Path

import pytest

from memlab.cli.main import main


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
        ("grid/zero2/record.json", "grid/zero2/record.json: no such folder."),
        ("grid", "grid: no run folder, because it has no record.json. Name one of those in it: zero2, zero3"),
        ("grid/zero2/logs", "grid/zero2/logs: no run folder, because it has no record.json. Is its run still going?"),
    ],
)
def test_another_folder_is_answered_with_run_folders(capsys, sweep, folder, advice):
    (sweep / "zero2" / "logs").mkdir()
    assert advice in error(capsys, folder)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["grid/zero3", "--at", "backward"], "--at is about one run: name one run folder."),
        (["grid/zero3", "grid/zero2"], "3 run folders: memlab explain takes one, or two to compare."),
        (["--time", "--page", "x.html"], "--page is about memory: leave out --time, which shows times instead."),
        (["--at", "backward", "--remedies", "2"], "--remedies is about the run's peak: leave out --at."),
    ],
)
def test_options_without_effect_are_refused(capsys, sweep, options, advice):
    assert advice in error(capsys, "grid/zero2", *options)
