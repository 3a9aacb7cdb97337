"""``memlab doctor`` on this machine, as a person calls it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]


def doctor(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from memlab.cli.main import main; main()", "doctor", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.long(45)  # where the op is not built yet
def test_the_default_plan_is_healthy_and_its_op_is_built():
    done = doctor("model=tiny", "hardware=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok") and "compiler" in line and "ShareMemComm" in line for line in lines)
    assert any(line.startswith("ok") and "op ShareMemComm" in line and "ready after" in line for line in lines)


def test_without_a_build_there_is_no_line_about_it():
    done = doctor("model=tiny", "hardware=cpu", "--no-build")
    assert done.returncode == 0
    assert "ready after" not in done.stdout


def test_a_plan_that_means_nothing_fails():
    done = doctor("model=tiny", "hardware=cpu", "zero_stage=zero0", "offload=optimizer")
    assert done.returncode == 1
    assert "fail  plan" in done.stdout and "zero_stage=zero1 or higher" in done.stdout


@pytest.mark.parametrize("words", [("optimizr=adamw",), ("zero_stage=zero4",), ("mode=predict",)])
def test_words_that_compose_nothing_are_one_line(words):
    done = doctor(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("memlab: ")
