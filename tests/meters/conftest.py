"""Scripts as subprocesses, with memlab's bootstrap on their path and nothing else of memlab."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interpreter import PYTHON

from memlab.meters.install import environment, install
from memlab.meters.options import MeterOptions

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node")


@dataclass
class Measured:
    """A command that has ended, and what its ranks left."""

    folder: Path
    returncode: int
    output: str

    def rank(self, number: int = 0) -> dict[str, Any]:
        return json.loads((self.folder / f"rank{number}.json").read_text())

    def rows(self, number: int = 0) -> list[dict[str, Any]]:
        lines = (self.folder / f"rank{number}.steps.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def files(self) -> list[str]:
        """Names of the files that ranks left, those of a second process with the same number included."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("rank*.json"))


@pytest.fixture(scope="session")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Measured]:
    """``measure("code", ranks=2, steps=3)``: the script with this code, measured in a folder of its own."""

    def run(
        code: str,
        *words: str,
        ranks: int = 1,
        steps: int | None = None,
        profile: int | None = None,
        python: str | Path = PYTHON,
        prepare: Callable[[Path], None] = lambda package: None,
        environ: dict[str, str] | None = None,
    ) -> Measured:
        place = tmp_path_factory.mktemp("command")
        (place / "script.py").write_text(code)
        folder = place / "run"
        folder.mkdir()
        options = MeterOptions(str(folder), steps=steps, started_at=time.time(), profile=profile)
        prepare(install(folder, options) / "memlab_attach" / "meters")
        launcher = (*TORCHRUN, str(ranks)) if ranks > 1 else ()
        done = subprocess.run(
            [str(python), *launcher, "script.py", *words],
            env=environment({**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})}, folder),
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        return Measured(folder, done.returncode, done.stdout)

    return run
