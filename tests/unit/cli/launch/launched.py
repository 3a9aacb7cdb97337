"""What the tests of ``launch.py`` start it with and read of it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LAUNCH = Path(__file__).parents[4] / "launch.py"

INSIDE_A_LAUNCHER = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def process(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """launch.py in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if name not in INSIDE_A_LAUNCHER}
    command = [sys.executable, str(LAUNCH), *words]
    return subprocess.run(
        command, cwd=folder, env={**inherited, **variables}, capture_output=True, text=True, timeout=60
    )


def lines(done: Done) -> list[str]:
    return done.stderr.splitlines()


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


QUICK = ("hardware=cpu", "mode=predict", "offload=param")
"""A record at once, since the combination is unsupported."""
