"""Environments of other people: no memlab, pandas or hydra beside torch, and a sitecustomize of their own."""

import os
import sys

import pytest
from bare_environment import python_with_torch_alone, sitecustomize_of

pytestmark = pytest.mark.cpu

ABSENT = ("memlab", "pandas", "hydra", "transformers")

SCRIPT = f"""
import importlib.util, sitecustomize, torch
print([name for name in {ABSENT} if importlib.util.find_spec(name)], sitecustomize.__file__)
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], 0.1)
for _ in range(2):
    weight.sum().backward()
    optimizer.step()
"""


def test_a_script_in_an_environment_with_torch_alone(measure, tmp_path):
    python = python_with_torch_alone(tmp_path / "venv")
    run = measure(SCRIPT, python=python, environ={"PYTHONPATH": ""})
    assert run.returncode == 0, run.output
    assert run.output.splitlines()[-1] == f"[] {sitecustomize_of(python)}"
    assert (run.rank()["status"], run.rank()["attached"]["steps"]) == ("ok", 2)
    assert set(run.rank()["attached"]["versions"]) <= {"python", "torch", "triton"}


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_options_that_drop_the_path_leave_no_file(measure, tmp_path, option):
    launch = tmp_path / "python"
    launch.write_text(f'#!/bin/sh\nexec {sys.executable} {option} "$@"\n')
    launch.chmod(0o755)
    run = measure("print('the end')", python=launch)
    assert (run.output, run.files, os.listdir(run.folder)) == ("the end\n", [], [".attach"])
