"""``memlab COMMAND`` as a person meets it: its words, its errors, and what it shows without a path."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memlab.cli import main as cli
from memlab.cli.commands.predict import EFFECTS
from memlab.cli.main import COMMANDS, main
from memlab.report.screen import WIDTH
from memlab.runs.folder import RunFolder
from memlab.system.machine import Machine

CHECKOUT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("number", "path", "advice"),
    [
        (errno.ENOSPC, "config.yaml", "free some space"),
        (errno.ENOSPC, None, "free some space"),
        (errno.EACCES, "/root", "choose a place that you may read and write"),
        (errno.EROFS, "/sys", "choose a place that you may read and write"),
        (errno.EISDIR, "/", "name a file, not a folder"),
        (errno.ENOTDIR, "/etc/hosts/x", "part of the path is a file, not a folder"),
        (errno.ENAMETOOLONG, "x" * 5000, "choose a shorter name"),
    ],
)
def test_every_trouble_with_a_path_is_one_line_that_says_what_to_do(capsys, number, path, advice):
    def fail():
        raise OSError(number, os.strerror(number), path)

    assert cli.guarded(fail) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"memlab: {(path or 'a file')[:100]}") and os.strerror(number) in line and advice in line
    assert len(line) < 400


def test_trouble_that_no_path_explains_is_a_bug(capsys):
    def fail():
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    assert cli.guarded(fail) == os.EX_SOFTWARE
    assert "ConnectionResetError" in capsys.readouterr().err


def called(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as left:
        main(words)
    return left.value.code


def test_show_prints_the_run(tmp_path, record, capsys):
    RunFolder(tmp_path).finish(record())
    assert called("show", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert out.startswith("Fits on 2 x H200: ") and "2,048 tokens/s" in out and "0123abcd" not in out
    assert called("show", "--all", str(tmp_path)) == 0
    assert "tiny-zero2-s512-b1-2xH200-0123abcd" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "{", '{"schema_version": 99}'])
def test_show_says_what_is_wrong_with_a_folder(tmp_path, capsys, text):
    if text:
        (tmp_path / "record.json").write_text(text)
    assert called("show", str(tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    absent = f"memlab: {tmp_path}: no run folder, because it has no record.json."
    assert line.startswith(f"memlab: {tmp_path}/record.json: " if text else absent)


def test_help_lists_the_commands(capsys):
    assert called("--help") == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)
    assert called("predict", "--help") == 0
    assert {"rtx4090_x1,", "h200_x8,"} <= set(capsys.readouterr().out.split())
    assert len(EFFECTS) <= WIDTH


@pytest.fixture
def outputs(tmp_path, record, monkeypatch):
    """``outputs("day/run", 5)``: a run folder below outputs/ whose record was written at second 5."""
    monkeypatch.chdir(tmp_path)

    def finish(name: str, at: int) -> None:
        folder = RunFolder(tmp_path / "outputs" / name)
        folder.path.mkdir(parents=True)
        folder.finish(record(run_id=name.rpartition("/")[2]))
        os.utime(folder.path / RunFolder.RECORD, (at, at))

    return finish


def test_show_without_a_path_shows_the_latest_run(outputs, capsys):
    for name, at in (("a/old", 1), ("b/new", 3), ("a/middle", 2)):
        outputs(name, at)
    assert called("show") == 0
    out, err = capsys.readouterr()
    assert "new" in out and "middle" not in out
    assert err == "the latest run: outputs/b/new\n"


def test_table_without_a_path_shows_the_latest_sweep(outputs, capsys):
    for name, at in (("sweep/a", 1), ("sweep/b", 4), ("older/a", 2), ("older/b", 3), ("single/a", 5)):
        outputs(name, at)
    assert called("table") == 0
    out, err = capsys.readouterr()
    assert "2 points" in out
    assert err.splitlines()[0] == "the latest sweep: outputs/sweep"


@pytest.mark.parametrize(("command", "what"), [("show", "run"), ("table", "sweep")])
def test_where_nothing_ran_one_line_says_so(tmp_path, monkeypatch, capsys, command, what):
    monkeypatch.chdir(tmp_path)
    assert called(command) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"memlab: No {what} below outputs/ in the current folder.")


def test_python_m_memlab_is_the_console_script(tmp_path):
    command = [sys.executable, "-m", "memlab", "show"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("memlab: No run below outputs/")


def test_a_folder_behind_an_option_is_refused_with_the_order(capsys):
    assert called("explain", "a", "--time", "b") == 2
    assert "unrecognized arguments: b (put positional arguments before the options)" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["shew"], ["diff"]])
def test_a_wrong_command_is_an_error_of_input(capsys, words):
    assert called(*words) == 2


def test_a_misspelt_command_is_answered_with_the_nearest(capsys):
    assert called("shew", "outputs/run") == 2
    assert capsys.readouterr().err == "memlab: No command 'shew'. Did you mean 'show'?\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "hardware=h200_x1 python train.py --lr 1",
            "unrecognized arguments: --lr 1 (put -- before the training command)",
        ),
        ("hardware=h200_x1 python train.py", "Put -- before the training command: -- python train.py"),
        (
            "--hardware h200_x1 -- python train.py",
            "unrecognized arguments: --hardware (hardware is a word without dashes",
        ),
        ("hardware=h200_x1 --", "No command to predict: it comes after --."),
        ("-- python train.py", "A prediction is for GPUs that you name: add hardware="),
        (
            "hardware=a100 -- python train.py",
            "Unknown option 'a100' of config group 'hardware'. Did you mean 'a100_40g_x8'",
        ),
        (
            "hardware=a100_40g_x4 -- python train.py",
            "Unknown option 'a100_40g_x4' of config group 'hardware'. Did you mean 'a100_40g_x8'? hardware.gpus=N sets",
        ),
        (
            "hardwre=h200_x1 -- python train.py",
            "hardwre=h200_x1: before -- come only memlab's options and the words of the hardware, as in "
            "hardware=a100_80g_x8 hardware.gpus=4. Did you mean 'hardware'?",
        ),
        ("hardware=h200_x8 hardware.gpu=4 -- python train.py", "'hardware.gpu' is the name of a GPU, not '4'."),
        ("model=llama3_8b -- python train.py", "model=llama3_8b: before -- come only memlab's options and the words"),
        ("--changess -- python train.py", "unrecognized arguments: --changess (did you mean --changes?)"),
        ("--bogus -- python train.py", "unrecognized arguments: --bogus (memlab predict --help lists the options)"),
    ],
)
def test_a_wrong_command_line_of_predict_is_one_line_and_leaves_no_folder(
    tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("memlab.system.machine.detect", Machine)  # without GPUs
    with pytest.raises(SystemExit) as left:
        main(["predict", *words.split()])
    assert left.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"memlab: {message}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("launch train.py -- --lr 1", "launch train.py -- --lr 1"),
        ("--steps 3 launch train.py -- --lr 1", "launch train.py -- --lr 1"),
        ("-- launch train.py -- --lr 1", "launch train.py -- --lr 1"),
        ("--steps 3 -- launch train.py --lr 1", "launch train.py --lr 1"),
        ("launch train.py --lr 1", "launch train.py --lr 1"),
    ],
)
def test_a_separator_of_the_measured_command_is_its_own(monkeypatch, words, command):
    measured = []
    monkeypatch.setattr("memlab.cli.commands.measure.run", lambda arguments: measured.append(arguments) or 0)
    assert called("measure", *words.split()) == 0
    (arguments,) = measured
    assert (arguments.training or arguments.words) == command.split()


def test_a_measurement_without_a_command_is_refused(capsys):
    assert called("measure", "--steps", "3", "--") == 2
    assert "No command to measure" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--explain-oom", "--explain-ranks 0"])
def test_options_of_a_recording_need_one(tmp_path, monkeypatch, capsys, option):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["measure", *option.split(), "--", "python", "train.py"])
    assert left.value.code == 2 and "of --explain: add --explain." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
