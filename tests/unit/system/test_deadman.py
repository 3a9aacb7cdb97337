"""Processes of a guarded launch end with it, also when memlab is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

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
