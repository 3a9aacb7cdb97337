"""How launch.py ends, and the record that it leaves: unsupported, a full disk, signals."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launched import LAUNCH, lines

from memlab.cli.experiments import EXIT_CODES
from memlab.files.json_file import read_json
from memlab.runs.folder import RunFolder
from memlab.system.deadman import marked_by


def test_an_unsupported_combination_is_a_record_at_once(launch, here):
    done = launch("hardware=cpu", "offload=param", "hydra.run.dir=here")
    assert done.returncode == EXIT_CODES["unsupported"] == 8
    record = RunFolder(here / "here").read_record()
    assert record.status == "unsupported" and "only ZeRO stage 3 partitions parameters" in record.reason
    assert "; instead: " in record.reason
    assert record.choices["offload"] == "param"
    assert read_json(here / "here" / "plan.json")["command"] == []


@pytest.mark.parametrize(("words", "code"), [(["seed=1"], 8), (["-m", "seed=1"], 0)])
def test_a_prediction_is_never_a_measurement(launch, here, words, code):
    done = launch(*words, "hardware=cpu", "mode=predict", "offload=param")
    assert done.returncode == code
    (record,) = [json.loads(path.read_text()) for path in here.rglob("record.json")]
    assert (record["source"], record["status"]) == ("predicted", "unsupported")


def test_a_secret_among_the_words_reaches_no_file_in_any_run_of_them(launch, here):
    words = ["hardware=cpu", "offload=param", "data.path=/x/open-sesame", "hydra.run.dir=here"]
    for _ in range(2):  # the second finds the record and runs nothing
        launch(*words, MY_TOKEN="open-sesame")
        files = [path for path in (here / "here").rglob("*") if path.is_file()]
        assert len(files) == 9
        assert not [path.name for path in files if "sesame" in path.read_text()]


@pytest.mark.parametrize("words", [["seed=1"], ["-m", "seed=1"]])
def test_a_full_disk_is_one_line_and_no_half_a_record(launch, here, monkeypatch, words):
    def no_space(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)  # Hydra calls none
        done = launch(*words, "hardware=cpu", "offload=param")
    assert done.returncode == 1
    [line] = lines(done)
    assert line.startswith("memlab: Cannot write ") and "No space left on device" in line
    assert not list(here.rglob("record.json")) and not list(here.rglob("*.tmp"))


STUBBORN = """
import signal, sys
from memlab.cli import main as cli
from memlab.launch import job_launch, process
code = "import pathlib, signal, time\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
code += "pathlib.Path('started').touch()\\ntime.sleep(60)"
job_launch.command = lambda *_: [sys.executable, "-S", "-c", code]
process.TERMINATE_S = 1.0
if sys.argv.pop() == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
cli.launch()
"""


def interrupted(folder: Path, numbers: list[int], *words: str) -> tuple[int, str]:
    """Send these signals, a moment apart, to a memlab whose ranks do not heed SIGTERM. Its exit code and errors."""
    command = [sys.executable, "-c", STUBBORN, "hardware=cpu", "hydra.run.dir=here", *words]
    environment = {**os.environ, "PYTHONPATH": str(LAUNCH.parent), "MEMLAB_TEST_INTERRUPT": str(folder)}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as memlab:
        deadline = time.monotonic() + 120
        while not (folder / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        for number in numbers:
            memlab.send_signal(number)
            time.sleep(0.2)
        errors = memlab.communicate(timeout=50)[1]  # less than its ranks would live
    assert not list(marked_by("MEMLAB_TEST_INTERRUPT", str(folder)))
    return memlab.returncode, errors


@pytest.mark.parametrize(
    ("numbers", "mode"),
    [
        ([signal.SIGHUP], ""),
        ([signal.SIGINT, signal.SIGINT, signal.SIGTERM], ""),
        ([signal.SIGHUP, signal.SIGINT], "nohup"),  # the first is ignored, the second ends it
    ],
)
def test_a_signal_ends_a_run_with_its_record_however_often_it_comes(tmp_path, numbers, mode):
    code, errors = interrupted(tmp_path, numbers, mode)
    assert code == EXIT_CODES["interrupted"]
    assert RunFolder(tmp_path / "here").read_record().status == "interrupted"
    assert errors.count("ending what was started") == (len(numbers) - 1) * (mode == "")
