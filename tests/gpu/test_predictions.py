"""Predictions on a machine that has a GPU and CUDA's compiler, which they take nothing from."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memlab.system.machine import detect

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not detect().gpus, reason="this machine has no GPU")]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("stage", ["zero0", "zero1", "zero2", "zero3"])
def test_own_training_is_predicted_with_its_step_time(tmp_path, stage):
    """The tiny model has two query heads for each key head, as Llama has four."""
    words = [
        "mode=predict",
        "model=tiny",
        f"zero_stage={stage}",
        "hardware=h200_x1",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), *words], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["summary"]["step_seconds"] > 0, done.stdout
