"""Every command of README.md, as it stands there, from top to bottom in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

COMMANDS = [
    command
    for block in re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    for command in block.replace("\\\n", " ").splitlines()
]

SETS_UP = ("make demo", "make test")
"""Commands that prepare an environment of their own. make test is what CI itself runs."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what the commands read, so that what they write does not land in the repository."""
    for name in ("launch.py", "conf", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_every_command_runs(checkout, subtests):
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    for command in COMMANDS:
        if command.startswith(SETS_UP):
            continue
        with subtests.test(command):
            done = subprocess.run(
                ["bash", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stdout + done.stderr


def test_the_commands_that_set_up_are_targets_of_the_makefile():
    targets = [command.split()[1] for command in COMMANDS if command.startswith(SETS_UP)]
    assert targets == ["demo", "test"]
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)
