"""Every command of README.md and the how-to pages, from top to bottom in one folder, and the output that is shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]

PAGES = (
    pytest.param("README.md", marks=pytest.mark.long(220)),
    pytest.param("docs/howto/memory_in_ci.md", marks=pytest.mark.long(30)),
    pytest.param("docs/howto/two_versions.md", marks=pytest.mark.long(30)),
)
"""docs/howto/gpu_and_price.md is tested in tests/unit/cli/test_own_hardware.py, words.md in test_howto_words.py."""

SETS_UP = ("make demo", "make test", "pip install", "python3 -m venv ~")
"""Commands that prepare an environment of their own. make test is what CI itself runs."""

WIDTH = 100
"""Columns of the terminal that the pages show."""


def commands_of(page: str) -> list[tuple[str, str]]:
    """Return (command, the output shown below its block, or "")."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```\n(?:\n```\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL)
    return [
        (command, shown) for words, shown in blocks for command in words.replace("\\\n", " ").splitlines() if command
    ]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what the commands read, so that what they write does not land in the repository."""
    for name in ("launch.py", "conf", "results", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs_and_prints_what_is_shown(checkout, subtests, page):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH)}
    printed: dict[str, set[str]] = {}
    for command, shown in commands_of(page):
        if command.startswith(SETS_UP):
            continue
        with subtests.test(command):
            done = subprocess.run(
                ["bash", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stdout + done.stderr
            lines = printed.setdefault(shown, set())  # of all commands of a block
            lines |= {line.rstrip() for line in done.stdout.splitlines()}
    for shown, lines in printed.items():
        assert not [line for line in shown.splitlines() if line not in lines], sorted(lines)


def test_the_commands_that_set_up_are_targets_of_the_makefile():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = sorted(set(re.findall(r"`make (\w+)`", readme)))
    assert targets == ["demo", "test"]
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 8000
