"""What the tests on clusters share."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "cpu" / "faults"
LAUNCH = [sys.executable, str(ROOT / "launch.py")]
SHORT = ["model=tiny", "measure=quick", "seq_len=s128", "hardware=cpu", "hardware.gpus=1"]
ADMIN_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def need(*programs: str) -> None:
    """Skip the test where one of these is not installed."""
    missing = [name for name in programs if shutil.which(name, path=ADMIN_PATH) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def wait_until(condition: Callable[[], object], timeout: float, what: Callable[[], object] = str) -> None:
    """``what()`` is shown if the condition is not true within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened within {timeout} s\n{what()}"
        time.sleep(0.2)
