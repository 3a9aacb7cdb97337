"""Real runs on one GPU: what a CPU cannot show."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memlab.analyse.explain import explained_run
from memlab.analyse.explain.explained import Explained
from memlab.runs.folder import RunFolder
from memlab.system.machine import detect

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
    assert rank["oom"]["phase"] == "engine_init" and rank["oom"]["requested_bytes"] > 0
    assert explain(tmp_path / "run").has_history is False


FORKS = """
import multiprocessing, sys
import torch, transformers

torch.zeros(1, device="cuda")
config = transformers.LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
transformers.LlamaForCausalLM(config).save_pretrained("model")
model = transformers.LlamaForCausalLM.from_pretrained("model").cuda()
context = multiprocessing.get_context("fork")
children = [context.Process(target=sum, args=([1, 2],)) for _ in range(2)]
for child in children:
    child.start()
for child in children:
    child.join()
    assert child.exitcode == 0
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(input_ids=torch.ones(1, 8, dtype=torch.long, device="cuda"), labels=torch.ones(1, 8, dtype=torch.long,
        device="cuda")).loss.backward()
    optimizer.step()
"""


def test_a_script_forks_after_it_has_loaded_a_model_onto_the_gpu(tmp_path):
    (tmp_path / "script.py").write_text(FORKS)
    words = [
        sys.executable,
        "-m",
        "memlab",
        "measure",
        "--output",
        str(tmp_path / "run"),
        "--",
        sys.executable,
        "script.py",
    ]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("options", "retry"), [((), 0), ((), 2), (("--explain", "2"), 0)])
def test_an_out_of_memory_is_kept_and_adds_up_to_the_drivers_figure(tmp_path, options, retry):
    script = ROOT / "tests" / "scripts" / "runs_out.py"
    sizes = (
        "--hidden",
        "256",
        "--layers",
        "4",
        "--length",
        "256",
        "--batch",
        "16",
        "--gib",
        "2",
        "--retry",
        str(retry),
    )
    command = [sys.executable, "-m", "memlab", "measure", "--output", str(tmp_path / "run"), *options, "--"]
    done = subprocess.run(
        [*command, sys.executable, str(script), *sizes, "--steps", "20" if retry else "500"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ("memlab explain" in done.stderr) and (done.returncode == 0) is bool(retry), done.stdout + done.stderr
    rank = explain(tmp_path / "run")
    kinds = {held.site.kind for held in rank.oom.moment.holdings}
    assert {"weights", "optimizer states"} <= kinds
    assert rank.has_history is bool(options) and rank.oom.goes_on is bool(retry)
    assert rank.oom.used.nbytes == sum(part.nbytes for part in rank.oom.used.parts)
    assert rank.oom.moment.reserved <= 2 << 30 < rank.oom.moment.reserved + rank.oom.request.nbytes


def explain(folder: Path) -> Explained:
    return explained_run.explain(RunFolder(folder)).shown


def test_adapters_beside_weights_in_4_bits(tmp_path):
    """Linear layers in 4 bits and a scale of 8 bits for every 64 weights; no gradients and states but the adapters'."""
    model = ("model=smollm2_135m", "zero_stage=zero2")
    code, lora = measure(tmp_path / "lora", *model, "adapter=lora", "adapter.target_modules=[q_proj,v_proj]")
    assert code == 0, lora["reason"]
    code, qlora = measure(tmp_path / "qlora", *model, "adapter=qlora", "adapter.target_modules=[q_proj,v_proj]")
    assert code == 0, qlora["reason"]
    before, after = lora["ranks"][0], qlora["ranks"][0]
    # 30 layers of rank 16 on two layers of 576 inputs, to 576 and to 192 outputs
    assert before["trainable_parameters"] == after["trainable_parameters"] == 30 * 16 * (576 + 576 + 576 + 192)
    assert before["parameters"] == after["parameters"] == 134_515_008 + after["trainable_parameters"]
    linear = 134_515_008 - 49_152 * 576 - (2 * 30 + 1) * 576  # without the tied embedding and the norms
    left = [rank["phases"]["engine_init"]["end_allocated_bytes"] for rank in (before, after)]
    assert left[0] - left[1] == pytest.approx(linear * (2 - 0.5 - 1 / 64), rel=0.02)


def test_fused_kernels_keep_no_logits(tmp_path):
    words = ("model=smollm2_135m", "zero_stage=zero2", "seq_len.tokens=4096", "checkpointing=full")
    code, plain = measure(tmp_path / "plain", *words)
    assert code == 0, plain["reason"]
    code, fused = measure(tmp_path / "fused", *words, "kernels=liger")
    assert code == 0, fused["reason"]
    logits = 4 * 4096 * 49_152  # in fp32, and the loss makes a gradient of the same size
    saved = plain["ranks"][0]["peak_allocated_bytes"] - fused["ranks"][0]["peak_allocated_bytes"]
    assert saved > logits
    assert fused["summary"]["last_loss"] == pytest.approx(plain["summary"]["last_loss"], rel=0.02)


def test_a_snapshot_is_written_for_memory_viz(tmp_path):
    code, _ = measure(tmp_path / "run", "model=tiny", "zero_stage=zero2", "measure.snapshot=true")
    assert code == 0
    assert (tmp_path / "run" / "rank0.memory_snapshot.pickle").stat().st_size > 10_000
