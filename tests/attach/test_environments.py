"""Environments of other people: no memlab, pandas or hydra beside torch, and a sitecustomize of their own."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.cpu

ABSENT = ("memlab", "pandas", "hydra", "transformers")

SCRIPT = f"""
import importlib.util, sitecustomize, torch
print([name for name in {ABSENT} if importlib.util.find_spec(name)], sitecustomize.MINE)
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], 0.1)
for _ in range(2):
    weight.sum().backward()
    optimizer.step()
"""


@pytest.fixture
def python_with_torch_alone(tmp_path: Path) -> Path:
    """The interpreter of a virtual environment that holds torch, what torch needs, and a sitecustomize."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    for file in files_of({"torch"}):
        (packages / file.name).symlink_to(file)
    (packages / "sitecustomize.py").write_text("MINE = 'mine'\n")
    return tmp_path / "venv" / "bin" / "python"


def files_of(names: set[str], known: frozenset[str] = frozenset()) -> set[Path]:
    """Top-level files and folders of distributions and of what they require here."""
    found = set()
    for name in names - known:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        found |= {Path(distribution.locate_file(top)) for top in tops}
        needed = {Requirement(text) for text in distribution.requires or ()}
        here = {each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})}
        found |= files_of(here, known | names)
    return found


def test_a_script_in_an_environment_with_torch_alone(measure, python_with_torch_alone):
    run = measure(SCRIPT, python=python_with_torch_alone, environ={"PYTHONPATH": ""})
    assert run.returncode == 0, run.output
    assert run.output.splitlines()[-1] == "[] mine"
    assert (run.rank()["status"], run.rank()["attached"]["steps"]) == ("ok", 2)
    assert set(run.rank()["attached"]["versions"]) <= {"python", "torch", "triton"}


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_options_that_drop_the_path_leave_no_file(measure, tmp_path, option):
    launch = tmp_path / "python"
    launch.write_text(f'#!/bin/sh\nexec {sys.executable} {option} "$@"\n')
    launch.chmod(0o755)
    run = measure("print('the end')", python=launch)
    assert (run.output, run.files, os.listdir(run.folder)) == ("the end\n", [], [".attach"])
