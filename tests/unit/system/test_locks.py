"""A lock is held once, or shared; it says who holds it, and forgets that when it is let go."""

import os
import subprocess
import sys

import pytest

from memlab.system.locks import hold, holder


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def test_a_lock_is_held_once(path):
    with hold(path) as first, hold(path) as second:
        assert (first, second) == (True, False)
        with hold(path, shared=True) as third:
            assert not third
    with hold(path) as again:
        assert again


def test_a_lock_may_be_shared(path):
    with hold(path, shared=True) as first, hold(path, shared=True) as second, hold(path) as alone:
        assert (first, second, alone) == (True, True, False)


def test_who_holds_it_is_told_while_it_is_held(path):
    assert holder(path) == "another process"
    with hold(path):
        with hold(path):  # in vain: that must not wipe out who has it
            pass
        assert holder(path).startswith(f"pid {os.getpid()} on ")
    assert path.read_text() == ""


def test_a_process_that_dies_lets_go(path):
    code = "import os, sys; from pathlib import Path; from memlab.system.locks import hold; "
    code += "hold(Path(sys.argv[1])).__enter__(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    with hold(path) as mine:
        assert mine
