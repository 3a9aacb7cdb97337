"""``memlab predict -- COMMAND``: scripts as people write them, on GPUs that are not there."""

import os
import sys
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.planner.user_command import predict_command
from memlab.report.screen import screen
from memlab.runs.folder import RunFolder

pytestmark = [pytest.mark.shadow, pytest.mark.long(20), pytest.mark.core]

SCRIPTS = Path(__file__).parents[1] / "scripts"
SIZE = ("--hidden", "1024", "--layers", "8", "--heads", "16", "--vocab", "32000", "--length", "256")


@pytest.fixture(autouse=True)
def programs_of_this_environment(monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))


def predicted(folder: Path, words: list[str], hardware: tuple[str, ...] = ("hardware=h200_x8", "hardware.gpus=2")):
    config, _ = compose_config(["mode=predict", *hardware])
    return predict_command(words, config.hardware, RunFolder(folder / "run"), steps=2)


def test_a_script_with_ddp_is_predicted_by_phase_and_for_both_ranks(tmp_path):
    record = predicted(tmp_path, ["torchrun", "--nproc-per-node", "2", str(SCRIPTS / "ddp.py"), *SIZE])
    assert (record.status, record.source, len(record.ranks)) == ("ok", "predicted", 2)
    rank = record.ranks[0]
    weights = 4 * rank["parameters"]  # bytes: fp32
    assert 5 * weights < rank["peak_allocated_bytes"] < 9 * weights  # weights, buckets, moments, gradients, activations
    assert rank["device_used_bytes"] > rank["peak_reserved_bytes"] >= rank["peak_allocated_bytes"]
    assert {"first_forward", "forward", "backward", "optimizer_step"} <= set(rank["phases"])
    built, set_up = (rank["phases"][phase]["peak_allocated_bytes"] for phase in ("model_build", "engine_init"))
    assert (built, set_up) == pytest.approx((weights, 2 * weights), rel=0.01)  # DDP's buckets
    kinds = rank["breakdown"]["phases"]["optimizer_step"]
    assert kinds["optimizer states"] == pytest.approx(2 * weights, rel=0.001)  # biases are among the small tensors
    assert kinds["gradients"] == pytest.approx(weights, rel=0.001)
    assert kinds["communication buckets"] == pytest.approx(weights, rel=0.001)  # DDP copies the gradients
    assert [row["phase"] for row in record.steps["rows"]] == ["optimizer_step"] * 2
    assert [row["samples"] for row in record.steps["rows"]] == [8, 8]  # of both ranks
    assert record.summary["verdict"] == "fits" and len(record.steps["seconds"]) == 1  # of the second step
    assert [Path(line.split()[2]).name for line in record.command["assumed"]] == ["ddp.py:47"]
    assert record.ranks[0]["attached"]["meter_errors"] == []
    assert record.ranks[0]["host_probe"] is None, "its operators would be counted as the script's"


def test_what_does_not_fit_is_said(tmp_path):
    words = ["python", str(tmp_path / "big.py")]
    (tmp_path / "big.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(100_000, 100_000, bias=False, device='cuda')\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "model(torch.ones(1, 100_000, device='cuda')).sum().backward()\n"
        "optimizer.step()\n"
    )
    record = predicted(tmp_path, words, ("hardware=a100_40g_x8",))
    assert record.status == "gpu_oom" and record.summary["verdict"] == "does_not_fit"
    oom = record.ranks[0]["oom"]
    assert (oom["phase"], oom["step"], oom["requested_bytes"]) == ("first_backward", 1, 40_000_000_000)
    assert oom["where"].endswith("big.py:4") and "step 1" in record.reason
    assert record.steps["rows"] == [] and "optimizer_step" not in "".join(record.ranks[0]["phases"])


WITHOUT_A_CHOICE = """
import sys, torch
if sys.argv[1:]:
    torch.distributed.init_process_group("nccl")
model = torch.nn.Linear(20_000, 20_000, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(2):
    model(torch.ones(1, 20_000, device="cuda")).sum().backward()
    if sys.argv[1:]:
        torch.distributed.all_reduce(model.weight.grad)
    optimizer.step()
"""


def test_ranks_that_choose_no_gpu_share_the_first_one(tmp_path):
    (tmp_path / "loop.py").write_text(WITHOUT_A_CHOICE)
    words = ["torchrun", "--nproc-per-node", "2", str(tmp_path / "loop.py")]
    small = ("hardware=h100_x8", "hardware.memory_gib=6")  # one rank needs 5.3 GiB
    record = predicted(tmp_path, words, small)
    assert (record.status, record.summary["verdict"]) == ("gpu_oom", "does_not_fit")
    assert 10 < record.summary["needed_bytes"] / 2**30 < 11
    assert [rank["device"] for rank in record.ranks] == ["cuda:0", "cuda:0"]
    lines = screen(record, RunFolder(tmp_path / "run"))
    assert lines[0].startswith("Does not fit on 1 x H100") and ": 10.5 of 6.00 GiB" in lines[0]
    assert "Ranks 0-1 all use cuda:0, and share its memory: call torch.cuda.set_device(" in " ".join(lines)
    assert [rank["attached"]["other_devices"] for rank in record.ranks] == [[], []]
    record = predicted(tmp_path, [*words, "nccl"], small)
    assert record.status == "failed" and 'are on cuda:0, and NCCL ends with "Duplicate GPU' in record.reason


def test_single_changes_are_predicted_with_the_words_that_the_command_has(tmp_path):
    size = ("--hidden", "512", "--layers", "2", "--heads", "8", "--vocab", "32000", "--length", "256")
    words = ["python", str(SCRIPTS / "ddp.py"), *size, "--batch", "128", "--accumulate", "1"]
    config, _ = compose_config(["mode=predict", "hardware=t4_x1"])
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in alone.items():
            patch.setenv(name, value)
        record = predict_command(words, config.hardware, RunFolder(tmp_path / "run"), 1, lambda record: True)
    assert record.status == "gpu_oom"
    changes = record.command["changes"]
    told = {one["change"]: one["needs"]["verdict"] for one in changes["tried"]}
    assert told == {"--batch 64 --accumulate 2": "fits", "PYTORCH_ALLOC_CONF=expandable_segments:True": "does_not_fit"}
    halved = changes["tried"][0]
    assert changes["base"]["needs"]["used"] - halved["needs"]["used"] == halved["saved_bytes"] > 4 * 2**30
    assert RunFolder(tmp_path / "run").read_record().command["changes"] == changes


def test_a_mistake_in_the_script_is_its_own_error(tmp_path):
    (tmp_path / "wrong.py").write_text("import torch\ntorch.ones(2, device='cuda') @ torch.ones(3, device='cuda')\n")
    record = predicted(tmp_path, ["python", str(tmp_path / "wrong.py")])
    assert record.status == "failed" and "RuntimeError" in record.reason


def test_a_script_that_never_trains_ends_with_the_line_where_it_waits(tmp_path):
    serve = "import socket\nimport torch\nserver = socket.socket()\nserver.bind(('', 0))\nserver.listen()\n"
    (tmp_path / "serve.py").write_text(f"{serve}print('serving')\nserver.accept()\n")
    config, _ = compose_config(["mode=predict", "hardware=h200_x8"])
    words = ["python", str(tmp_path / "serve.py")]
    record = predict_command(words, config.hardware, RunFolder(tmp_path / "run"), None, timeout_s=25)
    assert record.status == "timeout" and RunFolder(tmp_path / "run").read_record().status == "timeout"
    assert "had not ended after 25 s: it was at " in record.reason
    assert "serve.py:7 before a first optimizer step" in record.reason and "command.log" in record.reason
