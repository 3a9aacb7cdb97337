"""A program that takes too much of the machine ends with one line, and nothing of it is left."""

import os
import sys
import textwrap
import time

import pytest

from memlab.core.sizes import MIB
from memlab.system.deadman import descendants
from memlab.system.sandbox import NAMESPACES, limits
from memlab.system.sandbox.limits import LimitError, free_host_memory

MEMORY = """
import time
kept = []
for _ in range(15):
    kept.append(bytearray(b"x") * 100_000_000)
    time.sleep(0.1)
"""
PROCESSES = """
import subprocess
for each in [subprocess.Popen(["sleep", "31"]) for _ in range(500)]:
    each.wait()
"""
DISK = """
import time
with open("large", "wb") as file:
    for _ in range(12):
        file.write(b"x" * 100_000_000)
        file.flush()
        time.sleep(0.1)
"""


def ended(sandbox, program: str, project, monkeypatch) -> str:
    """Run a program until a limit ends it. Returns why."""
    monkeypatch.chdir(project)
    before, began = descendants(os.getpid()), time.monotonic()
    with pytest.raises(LimitError) as error:
        sandbox.run([sys.executable, "-c", textwrap.dedent(program)], {**os.environ}, timeout=60)
    assert descendants(os.getpid()) == before and time.monotonic() - began < 40
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_program_that_takes_host_memory_without_end_is_ended(sandbox, project, monkeypatch):
    monkeypatch.setattr(limits, "MEMORY_LEFT", free_host_memory() - 500 * MIB)
    told = ended(sandbox, MEMORY, project, monkeypatch)
    assert "GiB of host memory were left" in told


def test_a_program_that_is_ended_before_it_begins_has_no_effects(sandbox):
    assert [sandbox.effects()[key] for key in ("written", "deleted")] == [[], []]


def test_a_program_with_500_processes_is_ended(sandbox, project, monkeypatch):
    assert limits.MOST_PROCESSES >= 400
    monkeypatch.setattr(limits, "MOST_PROCESSES", 400)  # as on machines of up to 50 cores
    assert "at most 400 may run" in ended(sandbox, PROCESSES, project, monkeypatch)


def test_a_program_that_fills_the_disk_is_ended_and_its_files_are_removed(sandbox, project, monkeypatch):
    free = min(limits.shutil.disk_usage(place).free for place in (sandbox._scratch, project))
    monkeypatch.setattr(limits, "DISK_LEFT", free - 300 * MIB)
    told = ended(sandbox, DISK, project, monkeypatch)
    assert "GiB were left on the disk of" in told and not (project / "large").exists()
    sandbox.__exit__()
    assert not sandbox._scratch.exists()


@pytest.mark.parametrize("protection", [NAMESPACES], indirect=True)
def test_the_kernel_ends_the_program_before_anything_else(sandbox, project, monkeypatch):
    monkeypatch.chdir(project)
    with (project / "score").open("w") as output:
        sandbox.run(["cat", "/proc/self/oom_score_adj"], os.environ, stdout=output)
    assert (project / "score").read_text() == "1000\n"
