"""Processes of a guarded launch end with it, also when memlab is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from memlab.system import deadman
from memlab.system.deadman import guarded, marked

HOLDS = """
import os, subprocess, sys, time
from memlab.system.deadman import TOKEN_VARIABLE, guarded
with guarded(os.environ) as environ:
    subprocess.Popen(["sleep", "60"], env=environ)
    print(environ[TOKEN_VARIABLE], flush=True)
    time.sleep(60)
"""


def test_an_exception_ends_the_processes():
    with pytest.raises(KeyboardInterrupt), guarded(os.environ) as environ:
        process = subprocess.Popen(["sleep", "60"], env=environ)
        raise KeyboardInterrupt
    assert process.wait(10) == -signal.SIGKILL


def test_the_death_of_memlab_ends_the_processes():
    memlab = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True)
    token = memlab.stdout.readline().strip()
    assert list(marked(token))
    memlab.kill()
    memlab.communicate()
    deadline = time.monotonic() + 20
    while list(marked(token)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(marked(token))


def test_a_folder_is_removed_whatever_its_permissions_and_the_folder_around_it_stays_as_it_is(tmp_path):
    inside = tmp_path / "scratch" / "work" / "work"
    inside.mkdir(parents=True)
    (inside.parent / "file").touch()
    (inside.parent / "link").symlink_to(tmp_path)
    inside.chmod(0)
    inside.parent.chmod(0o500)
    mode = tmp_path.stat().st_mode
    for _ in range(2):  # the second time, it is not there any more
        deadman.remove_folder(tmp_path / "scratch")
        assert not (tmp_path / "scratch").exists() and tmp_path.stat().st_mode == mode
