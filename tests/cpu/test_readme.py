"""Every command of README.md, as it stands there, from top to bottom in one folder; and the output that it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

BLOCKS = re.findall(r"^```bash\n(.*?)^```\n(?:\n```\n(.*?)^```)?", README, re.MULTILINE | re.DOTALL)
"""(commands, one a line; the output shown below them, or "")."""

COMMANDS = [
    (command, shown) for commands, shown in BLOCKS for command in commands.replace("\\\n", " ").splitlines() if command
]

SETS_UP = ("make demo", "make test")
"""Commands that prepare an environment of their own. make test is what CI itself runs."""

WIDTH = 100
"""Columns of the terminal that the README shows."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what the commands read, so that what they write does not land in the repository."""
    for name in ("launch.py", "conf", "results", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.long(160)
def test_every_command_runs_and_prints_what_is_shown(checkout, subtests):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH)}
    for command, shown in COMMANDS:
        if command.startswith(SETS_UP):
            continue
        with subtests.test(command):
            done = subprocess.run(
                ["bash", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stdout + done.stderr
            printed = {line.rstrip() for line in done.stdout.splitlines()}
            assert not [line for line in shown.splitlines() if line not in printed], done.stdout


def test_the_commands_that_set_up_are_targets_of_the_makefile():
    targets = [command.split()[1] for command, _ in COMMANDS if command.startswith(SETS_UP)]
    assert targets == ["demo", "test"]
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)
