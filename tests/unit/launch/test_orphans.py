"""What still runs when memlab and its deadman are killed at once ends by itself, or the next memlab ends it."""

import os
import signal
import subprocess
import sys
import time

import pytest
from played_sweeps import measure_job, measuring

from memlab.core.config import Sweep
from memlab.launch import orphans
from memlab.launch.orphans import locked
from memlab.runs.job import SweepObserver
from memlab.system import shared_memory as segments
from memlab.system.deadman import TOKEN_VARIABLE, marked
from memlab.system.machine import Machine

TOKEN = "0123456789abcdef"
PORT = 1  # of no launch

# Heeds no SIGTERM, and goes on writing what a rank writes.
ORPHAN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    pathlib.Path(sys.argv[1], "rank0.json").write_text("an orphan's")
    time.sleep(0.01)
"""


@pytest.fixture
def orphan(quick, job, monkeypatch):
    """An orphan of a launch that the folder of ``job()`` names."""
    monkeypatch.setattr(orphans, "TERMINATE_S", 0.2)
    folder = job().folder
    folder.claim()
    folder.keep_launch(TOKEN, PORT)
    words = [sys.executable, "-S", "-c", ORPHAN, str(folder)]
    with subprocess.Popen(words, env={TOKEN_VARIABLE: TOKEN}) as process:
        while not folder.rank_file(0).exists():
            time.sleep(0.01)
        yield process
        process.kill()


def test_a_resumed_run_ends_the_orphans_before_it_starts(orphan, deepspeed, job):
    deepspeed("both(folders[0])")
    assert measure_job(job()).status == "ok"
    assert orphan.wait(1) == -signal.SIGKILL
    assert job().folder.kept_launch() is None


def test_a_sweep_ends_the_orphans_of_what_is_done_too(orphan, deepspeed, job):
    played = deepspeed("both(folders[0])")
    measure_job(job())
    with subprocess.Popen(["sleep", "60"], env={TOKEN_VARIABLE: "late"}) as late:
        job().folder.keep_launch("late", PORT)
        measuring(Machine(), Sweep(), SweepObserver()).run([job()])
        assert late.wait(1) < 0
    assert played.launches == 1


def test_orphans_of_a_live_memlab_are_left_alone(orphan, job):
    with job().folder.lock(), locked(job()) as mine:
        assert not mine
    assert list(marked(TOKEN)) == [orphan.pid]


def test_what_orphans_named_in_shared_memory_goes(orphan, job, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "FOLDER", tmp_path)
    left = segments.segment("127.0.0.1", str(PORT), 0)
    other = segments.segment("127.0.0.1", "22", 0)
    left.touch(), other.touch()
    with locked(job()):
        assert other.exists() and not left.exists()


def test_a_launch_is_kept_only_while_it_runs(quick, deepspeed, job):
    deepspeed("note(str(json.loads(pathlib.Path(folders[0], '.launch').read_text())['token']))\nboth(folders[0])")
    measure_job(job())
    assert job().folder.kept_launch() is None and not (job().folder.path / ".launch").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"token": "x"}', '{"token": "x", "port": "y"}'])
def test_a_damaged_note_of_a_launch_is_none(job, text):
    folder = job().folder
    folder.claim()
    (folder.path / ".launch").write_text(text)
    assert folder.kept_launch() is None


RANK = """
import time
from memlab.training.lifeline import end_with_memlab
end_with_memlab()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_rank_ends_with_the_memlab_that_started_it(is_gone):
    with subprocess.Popen(["sleep", "60"]) as memlab:
        if is_gone:
            memlab.kill()
            memlab.wait()
        environment = {**os.environ, "MEMLAB_LIFELINE": f"pid:{memlab.pid}"}
        with subprocess.Popen([sys.executable, "-c", RANK], env=environment, stdout=subprocess.PIPE) as rank:
            if not is_gone:
                rank.stdout.readline()
                memlab.kill()
            assert rank.wait(20) == -signal.SIGKILL
