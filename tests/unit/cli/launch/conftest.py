"""``python launch.py`` in an empty folder."""

import signal
import sys
from pathlib import Path

import pytest
from launched import INSIDE_A_LAUNCHER, Done

from memlab.cli import main as cli


@pytest.fixture
def launch(tmp_path, monkeypatch, capfd):
    """``launch("bogus=1", RANK="0")``: what launch.py does with these words and variables, in an empty folder."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as run_hydra sets it: gone after the test
    for name in INSIDE_A_LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")

    def run(*words: str, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["launch.py", *words])
            for name, value in variables.items():
                patch.setenv(name, value)
            capfd.readouterr()
            with pytest.raises(SystemExit) as left:
                cli.launch()
        out, err = capfd.readouterr()
        return Done(left.value.code or 0, out, err)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def here(launch) -> Path:
    """The folder that launch runs in."""
    return Path.cwd()
