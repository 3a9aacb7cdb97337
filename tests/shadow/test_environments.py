"""``memlab predict -- COMMAND`` in environments of other people, which hold neither memlab nor what it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bare_environment import python_with_torch_alone, sitecustomize_of

from memlab.prediction.run_command import LOG, SimulationError, simulate
from memlab.simulator.simulation import Node

pytestmark = pytest.mark.shadow

NODE = Node("NVIDIA H200", 2, 139 << 30)

SCRIPT = """
import importlib.util, sitecustomize, torch
print([name for name in ("pandas", "hydra", "omegaconf", "transformers") if importlib.util.find_spec(name)])
print(sitecustomize.__file__, torch.cuda.device_count())
model = torch.nn.Linear(1 << 10, 1 << 10, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.ones(1, 1 << 10, device="cuda")).sum().backward()
    optimizer.step()
"""


def predicted(folder: Path, words: list[str | Path], **variables: str):
    environ = {**os.environ, "PYTHONPATH": "", **variables}
    return simulate(list(map(str, words)), NODE, folder, None, environ)


def test_the_order_of_sets_is_the_same_in_each_prediction(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    script = "import torch\nfor name in {str(n) for n in range(1, 13)}: torch.ones(int(name), 1 << 20, device='cuda')\n"
    (tmp_path / "script.py").write_text(script)

    def events(folder: str, **variables: str) -> list:
        (tmp_path / folder).mkdir()
        simulated = predicted(tmp_path / folder, [sys.executable, tmp_path / "script.py"], **variables)
        return simulated.traces[0].events

    assert events("first") == events("second")
    assert events("first_of_own_seed", PYTHONHASHSEED="1") != events("own_seed", PYTHONHASHSEED="2")


def test_torch_alone_is_enough(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    python = python_with_torch_alone(tmp_path / "venv")
    simulated = predicted(tmp_path, [python, tmp_path / "script.py"])
    printed = (tmp_path / LOG).read_text()
    assert simulated.returncode == 0, printed
    assert printed.splitlines()[-2:] == ["[]", f"{sitecustomize_of(python)} 2"]  # after a warning of torch
    assert (tmp_path / "rank0.json").exists() and len(simulated.traces[0].steps) == 2


@pytest.fixture
def python(tmp_path: Path):
    """``python(site)``: an interpreter with the modules of the folder ``site``, which has ``torch.py`` in it."""

    def make(version: str) -> Path:
        packages = tmp_path / "packages"
        (packages / f"torch-{version}.dist-info").mkdir(parents=True)
        (packages / f"torch-{version}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
        (packages / "torch.py").write_text("raise SystemExit('the real one')")
        launch = tmp_path / "python"
        launch.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        launch.chmod(0o755)
        return launch

    return make


def test_an_old_torch_is_named_before_it_is_imported(tmp_path, python):
    words = [python("2.4.1"), "-c", "import torch"]
    with pytest.raises(SimulationError, match=r"^torch 2\.4\.1 of .*python.* is too old: predictions need 2\.11"):
        predicted(tmp_path, words, PYTHONPATH=str(tmp_path / "packages"))
    assert "the real one" not in (tmp_path / LOG).read_text()


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_options_that_drop_the_bootstrap_are_said(tmp_path, option):
    with pytest.raises(SimulationError, match="python -I, -E and -S ignore it"):
        predicted(tmp_path, [sys.executable, option, "-c", "print(1)"])


def test_a_python_that_is_too_old_is_named(tmp_path):
    bootstrap = Path(__file__).parents[2] / "memlab" / "simulator" / "rank" / "bootstrap"
    code = f"import sys; sys.version_info = (3, 9, 1); exec(open({str(bootstrap / 'sitecustomize.py')!r}).read())"
    code = f"__file__ = {str(bootstrap / 'sitecustomize.py')!r}; {code}"
    environ = {"MEMLAB_SIMULATION": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ).returncode == 0  # a tool without torch
    assert not any(tmp_path.iterdir())
    assert subprocess.run([sys.executable, "-c", f"{code}; import torch"], env=environ).returncode == 1
    assert (
        tmp_path / "refusal.txt"
    ).read_text() == f"Python 3.9 of {sys.executable} is too old: predictions need 3.10 or newer."


def test_a_script_without_torch_keeps_its_own_error(tmp_path):
    simulated = predicted(tmp_path, [sys.executable, "-c", "import torch_of_mine"])
    assert (simulated.returncode, simulated.last_words) == (1, "ModuleNotFoundError: No module named 'torch_of_mine'")
