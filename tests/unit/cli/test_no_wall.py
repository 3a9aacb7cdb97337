"""``memlab predict`` where the system gives neither namespaces nor Landlock: it asks on a terminal, or refuses."""

import contextlib
import io
import os
import subprocess
import sys

import pytest

from memlab.cli import main
from memlab.planner import user_command
from memlab.system import sandbox
from memlab.system.sandbox import ALLOWED, NO_WALL, UNPROTECTED, WITHOUT_WALL, Sandbox, SandboxError, check_wall


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def predict(tmp_path, monkeypatch, capsys):
    """Return a function that predicts a command without a wall, and returns the exit code, the protections that the
    script ran with, and what was printed."""
    ran: list[str] = []

    def simulate(words, node, folder, steps, variables, *others):
        ran.append(UNPROTECTED if variables.get(WITHOUT_WALL) == ALLOWED else "a wall")
        raise SystemExit(0)

    def predict(*options: str, answer: str | None = None) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO() if answer is None else Terminal(answer))
        if answer is not None:
            monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "argv", ["memlab", "predict", *options, "hardware=h200_x1", "--", "true"])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return ended.value.code, ran, capsys.readouterr().err

    monkeypatch.setenv(WITHOUT_WALL, "")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(Sandbox, "_works", lambda self, place: False)
    monkeypatch.setattr(user_command, "simulate", simulate)
    monkeypatch.chdir(tmp_path)
    return predict


def test_without_a_terminal_it_refuses_names_the_option_and_leaves_no_folder(predict, tmp_path):
    code, ran, printed = predict()
    assert (code, ran) == (2, []) and "--unprotected" in printed
    assert list(tmp_path.iterdir()) == []


def test_asking_for_a_wall_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SandboxError):
        check_wall(os.environ)
    assert list(tmp_path.iterdir()) == []


def test_a_wall_that_worked_is_not_tried_again(tmp_path, monkeypatch):
    tried = []
    run = subprocess.run
    monkeypatch.setattr(sandbox, "_WORKED", [])
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: tried.append(1) or run(*args, **options))
    monkeypatch.chdir(tmp_path)
    try:
        check_wall(os.environ)
    except SandboxError:
        pytest.skip("this system gives no wall")
    first = len(tried)
    check_wall(os.environ)
    assert first and len(tried) == first
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    check_wall(os.environ)
    assert len(tried) > first


def test_the_option_runs_the_script(predict):
    assert predict("--unprotected")[:2] == (0, [UNPROTECTED])


@pytest.mark.parametrize(("answer", "ran"), [("y\n", [UNPROTECTED]), ("\n", []), ("", [])])
def test_on_a_terminal_it_asks(predict, answer, ran):
    code, found, printed = predict(answer=answer)
    assert found == ran and code == (0 if ran else 2) and NO_WALL in printed
