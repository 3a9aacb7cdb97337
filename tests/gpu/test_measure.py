"""Real runs on one GPU: what a CPU cannot show."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memlab.machine import detect

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not detect().gpus, reason="this machine has no GPU")]

ROOT = Path(__file__).resolve().parents[2]


def measure(folder: Path, *words: str) -> tuple[int, dict]:
    command = [
        sys.executable,
        str(ROOT / "launch.py"),
        "hardware.gpus=1",
        "measure=quick",
        f"hydra.run.dir={folder}",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (folder / "record.json").exists(), done.stdout + done.stderr
    return done.returncode, json.loads((folder / "record.json").read_text())


@pytest.mark.parametrize("allocator", ["default", "expandable"])
def test_torch_and_the_driver_agree(tmp_path, allocator):
    code, record = measure(tmp_path / "run", "model=smollm2_135m", "zero_stage=zero3", f"allocator={allocator}")
    assert code == 0, record["reason"]
    (rank,) = record["ranks"]
    assert rank["memory_source"] == "cuda_caching_allocator"
    assert rank["peak_allocated_bytes"] <= rank["peak_active_bytes"] <= rank["peak_reserved_bytes"]
    assert rank["peak_reserved_bytes"] < rank["device_used_bytes"] < rank["device_total_bytes"]
    # parameters in bf16; master weights and Adam's two states in fp32; gradients in bf16 - ZeRO-3 keeps all of it
    states = rank["parameters"] * (2 + 12 + 2)
    assert states < rank["phases"]["optimizer_step"]["end_allocated_bytes"] < states * 1.05 + 1.2 * 2**30
    assert record["environment"]["cuda"] and record["environment"]["nccl"]


def test_out_of_memory_says_where_and_how_much(tmp_path):
    code, record = measure(tmp_path / "run", "model=llama3_70b", "zero_stage=zero0", "seq_len=s128")
    assert (code, record["status"]) == (3, "gpu_oom")
    (rank,) = record["ranks"]
    assert rank["oom"]["phase"] == "model_build" and rank["oom"]["requested_bytes"] > 0


def test_a_snapshot_is_written_for_memory_viz(tmp_path):
    code, _ = measure(tmp_path / "run", "model=tiny", "zero_stage=zero2", "measure.snapshot=true")
    assert code == 0
    assert (tmp_path / "run" / "rank0.memory_snapshot.pickle").stat().st_size > 10_000
