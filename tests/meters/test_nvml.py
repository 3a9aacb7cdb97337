"""NVML with a stand-in of the driver's library."""

import ctypes
from types import SimpleNamespace

import pytest

from memlab.meters.nvml import Nvml


def test_an_older_driver_does_not_tell(monkeypatch):
    library = SimpleNamespace(nvmlInit_v2=lambda: 0, nvmlDeviceGetHandleByIndex_v2=lambda index, handle: 0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    with pytest.raises(OSError, match="nvmlDeviceGetComputeRunningProcesses_v3: not in this driver"):
        Nvml().processes(0)
