"""Predictions on a machine that has a GPU: what DeepSpeed and torch find there decides nothing."""

import os

import pytest

from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.training.simulated.shadow_process import TraceKey
from tests.shadow.traced_points import shadow_traces

pytestmark = pytest.mark.shadow

A_FULL_GPU = """
from types import SimpleNamespace

class NVMLError(Exception):
    pass

def nvmlInit():
    pass

def nvmlShutdown():
    pass

def nvmlSystemGetDriverVersion():
    return "580.159"

def nvmlDeviceGetCount():
    return 0

def nvmlDeviceGetHandleByIndex(index):
    return index

def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(free=0)
"""
"""NVIDIA's driver as ``pynvml`` shows it to DeepSpeed, with a GPU whose memory others have taken."""


def test_zero2_takes_its_free_memory_from_the_simulated_gpu(tmp_path, monkeypatch):
    """DeepSpeed flattens the weights on the GPU if they fit beside themselves, else on the host."""
    config, choices = compose_config(["mode=predict", "model=tiny", "zero_stage=zero2", "hardware=h200_x1"])
    plan, key = make_plan(config, choices), TraceKey(0, 1, 64)
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "pynvml.py").write_text(A_FULL_GPU)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "driver"), prepend=os.pathsep)
    trace = shadow_traces(plan, [key], tmp_path)[key]
    flat = 2 * trace.parameters  # bytes of the weights in bf16
    assert flat in {event.nbytes for event in trace.events if hasattr(event, "nbytes")}
