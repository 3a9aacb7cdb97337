"""The bootstrap in plain Python processes, with modules that stand in for torch and the meters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memlab.meters.install import environment, install, remove
from memlab.meters.options import MeterOptions

SAYS_WHAT_IT_MEETS = """
import sys
print("torch" in sys.modules, "started" in sys.modules)
import torch
print("torch" in sys.modules, "started" in sys.modules)
"""


@pytest.fixture
def run(tmp_path: Path):
    """``run("code", site="code")``: standard output of a process with the bootstrap and a sitecustomize of its own."""
    folder = install(tmp_path / "run", MeterOptions(folder=str(tmp_path / "run")))
    (folder / "memlab_attach" / "meters" / "start.py").write_text(
        "import sys\ndef begin(options):\n    sys.modules['started'] = options\n"
    )
    own = tmp_path / "own"
    own.mkdir()
    (own / "torch.py").write_text("")

    def run_python(code: str, *options: str, site: str | None = None) -> str:
        if site is not None:
            (own / "sitecustomize.py").write_text(site)
        environ = environment({**os.environ, "PYTHONPATH": str(own)}, tmp_path / "run")
        command = [sys.executable, *options, "-c", code]
        done = subprocess.run(command, env=environ, cwd=own, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run_python


def test_nothing_stays_behind_not_even_byte_code(run, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    run("import torch")
    assert list((tmp_path / "run" / ".attach").glob("__pycache__/*.pyc"))
    remove(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


def test_meters_start_after_the_import_of_torch(run):
    assert run(SAYS_WHAT_IT_MEETS).split() == ["False", "False", "True", "True"]


def test_a_library_that_imports_torch_itself_is_heard_of_at_the_end_of_its_import(run, tmp_path):
    (tmp_path / "own" / "deepspeed.py").write_text("import torch\ninitialize = 'whole'\n")
    (tmp_path / "run" / ".attach" / "memlab_attach" / "meters" / "start.py").write_text(
        "from . import import_hook\n"
        "def begin(options):\n    import_hook.after('deepspeed', lambda module: print('heard of', module.initialize))\n"
    )
    assert run("import deepspeed; print('script')") == "heard of whole\nscript\n"


def test_a_process_without_torch_imports_no_library_for_the_bootstrap(run):
    code = "import sys; print([name for name in ('importlib.util', 'contextlib', 'functools') if name in sys.modules])"
    assert run(code).split() == ["[]"]


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_options_that_drop_the_path_attach_nothing(run, option):
    code = "import sys; print([name for name in sys.modules if 'attach' in name])"
    assert run(code, option).split() == ["[]"]


def test_the_hidden_sitecustomize_runs_once_and_has_its_name(run):
    code = "import sitecustomize, sys; print(sitecustomize.mine, sitecustomize.__file__)"
    mine, file = run(code, site="mine = 'mine'\nprint('hello')").split()[1:]
    assert mine == "mine" and Path(file).parent.name == "own"


def test_the_hidden_sitecustomize_is_the_one_that_python_finds_without_memlab(run):
    """None, or that of Debian, whose folder comes before the environment's."""
    code = "import importlib.util; print(getattr(importlib.util.find_spec('sitecustomize'), 'origin', None))"
    assert run(code) == subprocess.check_output([sys.executable, "-c", code], text=True)


def test_the_path_is_the_callers(run, tmp_path):
    assert str(tmp_path / "run") not in run("import sys; print(sys.path)")


def test_a_failing_meter_is_said_and_the_script_goes_on(tmp_path):
    folder = install(tmp_path, MeterOptions(folder=str(tmp_path)))
    (folder / "memlab_attach" / "meters" / "start.py").write_text("1 / 0")
    (tmp_path / "torch.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print('done')"],
        env=environment(os.environ, tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "done\n" and "division by zero" in done.stderr
