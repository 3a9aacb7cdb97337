"""Scripts that put something else in the place of memlab's files: memlab ends in time, and follows nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.planner.user_command import predict_command
from memlab.runs.folder import RunFolder
from memlab.system import sandbox
from memlab.system.sandbox.limits import LimitError

SECRET = "hf_" + "a1" * 17  # memlab blanks it out wherever it writes

ATTACK = """
import os, sys
run, kind, precious = sys.argv[1:]
for name in ("record.json", "deepspeed.json", "rank0.json", "rank0.steps.jsonl", "rank0.trace.json", "command.log",
             "logs/launcher.log", "logs/rank0.log", ".attach/loaded", ".launch"):
    path = os.path.join(run, name)
    if os.path.lexists(path):
        os.unlink(path)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        os.makedirs(path + "/inside")
    else:
        os.symlink(precious if kind == "link" else "/dev/zero", path)
print("done")
"""

FOLDERS = """
import os, shutil, sys
run, precious = sys.argv[1:]
for name in ("logs", ".attach", ".hydra"):
    shutil.rmtree(os.path.join(run, name), ignore_errors=True)
    os.symlink(precious, os.path.join(run, name))
"""


def measured(*words: str) -> str:
    """The output of ``memlab measure``, which ends within a minute and reports no bug."""
    command = [sys.executable, "-m", "memlab", "measure", "--force", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != os.EX_SOFTWARE, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def precious(tmp_path) -> Path:
    file = tmp_path / "precious"
    file.write_text(f"the only copy, and {SECRET}")
    return file


@pytest.mark.parametrize("kind", ["link", "zero", "pipe", "folder"])
def test_what_a_measured_script_puts_in_the_place_of_files_is_neither_followed_nor_waited_for(tmp_path, precious, kind):
    before = precious.read_text()
    run = tmp_path / "run"
    words = ["--output", str(run), "--", sys.executable, "-c", ATTACK, str(run), kind, str(precious)]
    for _ in range(2):  # the second one finds what the first one left
        told = measured(*words)
        assert precious.read_text() == before
        assert RunFolder(run).read_record().status == "failed", told
        assert (run / "record.json").is_file() and not (run / "record.json").is_symlink()


def test_links_in_the_place_of_folders_are_not_followed(tmp_path, precious):
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("launcher.log", "rank0.log", "config.yaml", "sitecustomize.py", "loaded"):
        (kept / name).write_text(f"the only copy, and {SECRET}")
    before = {path.name: path.read_text() for path in kept.iterdir()}
    run = tmp_path / "run"
    for _ in range(2):
        told = measured("--output", str(run), "--", sys.executable, "-c", FOLDERS, str(run), str(kept))
        assert {path.name: path.read_text() for path in kept.iterdir()} == before, told
        assert RunFolder(run).read_record().status == "failed", told


SIMULATED = """
import os, sys
run, kind, precious = sys.argv[1:]
own, scratch = os.environ["MEMLAB_SIMULATION"], os.environ["MEMLAB_SANDBOX"]
files = ("record.json", "rank0.json", "rank0.steps.jsonl", "rank0.trace.json", "command.log")
paths = [os.path.join(folder, name) for folder in (run, own) for name in files]
paths += [os.path.join(own, name) for name in ("loaded", "refusal.txt", "1.stack", "cuda-torch2-" + 16 * "a" + ".so")]
paths += [os.path.join(scratch, "report", name) for name in ("refused", "answered")]
for path in paths:
    if os.path.lexists(path):
        os.unlink(path)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        os.makedirs(path + "/inside")
    else:
        os.symlink(precious if kind == "link" else "/dev/zero", path)
print("done", flush=True)
"""


@pytest.mark.parametrize("kind", ["link", "zero", "pipe", "folder"])
@pytest.mark.parametrize("protection", sandbox.PROTECTIONS)
def test_a_simulated_script_reaches_no_file_that_memlab_writes(tmp_path, precious, monkeypatch, protection, kind):
    monkeypatch.setattr(sandbox, "PROTECTIONS", (protection,))
    before = precious.read_text()
    config, _ = compose_config(["mode=predict", "hardware=h200_x1"])
    run = tmp_path / "run"
    words = [sys.executable, "-c", SIMULATED, str(run), kind, str(precious)]
    try:
        record = predict_command(words, config.hardware, RunFolder(run), steps=None, timeout_s=60)
    except sandbox.SandboxError as error:
        pytest.skip(str(error))
    assert record.status == "failed"
    assert precious.read_text() == before
    assert (run / "command.log").read_text() == "done\n"
    assert not [path for path in run.rglob("*") if not path.is_dir() and (path.is_symlink() or not path.is_file())]
    assert SECRET not in "".join(path.read_text() for path in run.rglob("*") if path.is_file())


LINKED = """
import os, sys, time
own = os.environ["MEMLAB_SIMULATION"]
os.unlink(own + "/simulation.json")
os.symlink(sys.argv[1], own + "/simulation.json")
os.chmod(own, 0o555)
time.sleep(60)
"""


@pytest.mark.parametrize("protection", sandbox.PROTECTIONS)
def test_a_script_that_memlab_ends_leaves_no_link_for_the_next_one(tmp_path, precious, monkeypatch, protection):
    def check_limits(processes, folders):
        if (tmp_path / "run" / ".attach" / "simulation.json").is_symlink():
            raise LimitError("it took too much")

    monkeypatch.setattr(sandbox, "PROTECTIONS", (protection,))
    monkeypatch.setattr(sandbox, "check_limits", check_limits)
    config, _ = compose_config(["mode=predict", "hardware=h200_x1"])
    words = [sys.executable, "-c", LINKED, str(precious)]
    try:
        record = predict_command(words, config.hardware, RunFolder(tmp_path / "run"), steps=None, timeout_s=50)
    except sandbox.SandboxError as error:
        pytest.skip(str(error))
    assert record.reason == "it took too much"
    assert not (tmp_path / "run" / ".attach").exists()
