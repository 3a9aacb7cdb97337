"""Real runs: launch.py as a person starts it, on two CPU ranks."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from leftovers import segments_left, segments_left_since

from memlab.system.deadman import marked_by

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).parent / "faults"
RUN_MARK = "MEMLAB_TEST_RUN"  # every process that a test starts carries it


@dataclass
class Run:
    """One start of launch.py, and what it left."""

    folder: Path
    process: subprocess.Popen
    mark: str

    def wait(self, timeout: float = 600) -> int:
        return self.process.wait(timeout)

    @property
    def record(self) -> dict:
        return json.loads((self.folder / "record.json").read_text())

    @property
    def output(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.out").read_text()

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text()

    def alive(self, without: tuple[int, ...] = ()) -> list[int]:
        """Processes of this run that are alive, memlab itself and its helpers included."""
        return [pid for pid in marked_by(RUN_MARK, self.mark) if pid not in without]

    def wait_until(self, condition: Callable[[], bool], timeout: float = 300) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"nothing happened within {timeout} s\n{self.output}"
            time.sleep(0.1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start launch.py with these words; ``fault`` is what tests/cpu/faults/sitecustomize.py does to a rank."""
    runs: list[Run] = []
    before = segments_left()

    def start_run(*words: str, fault: str = "") -> Run:
        folder = tmp_path / f"run{len(runs)}"
        mark = f"{tmp_path}-{len(runs)}"
        environment = {**os.environ, RUN_MARK: mark, "MEMLAB_TEST_FAULT": fault, "MEMLAB_TEST_FOLDER": str(tmp_path)}
        if fault:
            environment["PYTHONPATH"] = str(FAULTS)
        with (tmp_path / f"{folder.name}.out").open("w") as output:
            command = [sys.executable, str(ROOT / "launch.py"), *words, "measure=quick"]
            if not any("hydra." in word for word in words):
                command.append(f"hydra.run.dir={folder}")
            process = subprocess.Popen(
                command, env=environment, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        runs.append(Run(folder, process, mark))
        return runs[-1]

    yield start_run
    for run in runs:
        for pid in run.alive():
            os.kill(pid, 9)
        run.process.wait()
    assert not segments_left_since(before), "a launch left its shared memory behind"


@pytest.fixture(scope="session")
def finished() -> dict[tuple[str, ...], Run]:
    """What ``measured`` has started."""
    return {}


@pytest.fixture
def measured(start, finished: dict[tuple[str, ...], Run]) -> Callable[..., Run]:
    """``measured("zero_stage=zero3")``: a complete run, once for all tests of this process that look at the same."""

    def measure_once(*words: str) -> Run:
        if words not in finished:
            run = start(*words)
            assert run.wait() == 0, run.output
            assert run.alive() == []
            finished[words] = run
        return finished[words]

    return measure_once
