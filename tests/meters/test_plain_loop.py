"""Plain loops in torch: phases, steps, batches, and how a process ends."""

import signal

import pytest

from memlab.meters.host_probe import COPIED_BYTES

pytestmark = pytest.mark.cpu

LOOP = """
import torch
from torch import nn
from torch.utils.data import DataLoader

net = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
optimizer = torch.optim.AdamW(net.parameters())
texts = [torch.full((4 + index,), index % 50) for index in range(12)]

def pad(rows):
    return {
        "input_ids": nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "attention_mask": nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),
    }

def step(batch):
    loss = nn.functional.cross_entropy(net(batch["input_ids"]).flatten(0, 1), batch["input_ids"].flatten())
    loss.backward()
"""

TRAINING = (
    LOOP
    + """
for number, batch in enumerate(DataLoader(texts, batch_size=2, collate_fn=pad, num_workers=1), start=1):
    step(batch)
    if number % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
net.eval()
with torch.no_grad():
    for batch in DataLoader(texts, batch_size=4, collate_fn=pad):
        net(batch["input_ids"])
torch.save(net.state_dict(), "weights.pt")
"""
)


@pytest.fixture(scope="module")
def training(measure):
    return measure(TRAINING)


def test_a_loop_with_accumulation_evaluation_and_saving(training):
    run = training
    assert run.returncode == 0, run.output
    assert run.files == ["rank0.json"], "the loader's workers leave nothing"
    rank, rows = run.rank(), run.rows()
    attached = rank["attached"]
    assert (rank["status"], attached["ended"], attached["meter_errors"]) == ("ok", "finished", [])
    assert (attached["steps"], attached["micro_batches"], len(rows)) == (3, 6, 3)
    assert {name: phase["count"] for name, phase in attached["phases"].items()} == {
        **{"model_build": 1, "engine_init": 1},
        **{"first_forward": 2, "first_backward": 2, "first_optimizer_step": 1},
        **{"forward": 4, "backward": 4, "optimizer_step": 2},
        **{"first_evaluate": 1, "first_save": 1},
    }
    lines = TRAINING.splitlines()
    for phase, code in {
        "backward": "loss.backward()",
        "first_save": "torch.save",
        "first_evaluate": "net.eval()",
    }.items():
        file, line = attached["phases"][phase]["where"].split(":")
        assert file == "script.py" and code in lines[int(line) - 1]
    assert attached["optimizers"][0]["class"] == "torch.optim.adamw.AdamW"
    assert [model["parameters"] for model in attached["models"] if model["trained"]] == [50 * 16 + 16 * 50 + 50]


def test_the_host_is_probed_after_all_is_measured(training):
    rank = training.rank()
    assert len(rank["host_probe"]) == 3 and all(figure > 0 for figure in rank["host_probe"].values())
    peaks = [phase["host_peak_bytes"] for phase in rank["attached"]["phases"].values()]
    assert rank["host_peak_bytes"] < max(peaks) + COPIED_BYTES


def test_each_step_tells_its_batches(training):
    rows = training.rows()
    # Texts of 4, 5, 6, ... tokens, two a batch, two batches a step.
    assert [row["samples"] for row in rows] == [4, 4, 4]
    assert [row["tokens"] for row in rows] == [2 * 5 + 2 * 7, 2 * 9 + 2 * 11, 2 * 13 + 2 * 15]
    assert [row["real_tokens"] for row in rows] == [4 + 5 + 6 + 7, 8 + 9 + 10 + 11, 12 + 13 + 14 + 15]
    assert [row["longest_sample"] for row in rows] == [7, 11, 15]
    assert all(row["seconds"] > 0 and row["host_peak_bytes"] > 0 for row in rows)


def test_without_a_gpu_figures_of_a_device_are_absent(training):
    rank = training.rank()
    assert rank["memory_source"] == "host" and rank["device"] == "cpu" and rank["phases"] == {}
    assert rank["peak_allocated_bytes"] is None and "peak_allocated_bytes" in rank["unknown"]
    assert rank["host_peak_bytes"] >= max(row["host_peak_bytes"] for row in training.rows())
    assert len(rank["warmup_seconds"]) == 1 and len(rank["step_seconds"]) == 2


EVERY_STEP = "for batch in DataLoader(texts, batch_size=2, collate_fn=pad):\n    step(batch)\n    optimizer.step()\n"


def test_two_optimizers_make_one_step(measure):
    code = LOOP + "second = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)\n" + EVERY_STEP
    run = measure(code + "    second.step()\n")
    assert run.rank()["attached"]["steps"] == 6 == len(run.rows())
    classes = [each["class"] for each in run.rank()["attached"]["optimizers"]]
    assert sorted(classes) == ["torch.optim.adamw.AdamW", "torch.optim.sgd.SGD"]


def test_a_closure_is_a_part_of_the_optimizers_step(measure):
    code = LOOP.replace("AdamW(net.parameters())", "LBFGS(net.parameters(), max_iter=2)") + (
        "batch = pad(texts)\n"
        "def closure():\n"
        "    optimizer.zero_grad()\n"
        "    loss = nn.functional.cross_entropy(net(batch['input_ids']).flatten(0, 1), batch['input_ids'].flatten())\n"
        "    loss.backward()\n"
        "    return loss\n"
        "for _ in range(2):\n"
        "    optimizer.step(closure)\n"
    )
    run = measure(code)
    assert run.returncode == 0, run.output
    assert run.rank()["attached"]["steps"] == 2
    assert run.rank()["attached"]["phases"]["backward"]["count"] >= 1


def test_a_skipped_step_is_a_row_that_says_so(measure):
    code = LOOP + (
        "scaler = torch.amp.GradScaler('cpu')\n"
        "for number, batch in enumerate(DataLoader(texts, batch_size=4, collate_fn=pad)):\n"
        "    scaler.scale(nn.functional.cross_entropy(net(batch['input_ids']).flatten(0, 1),\n"
        "                 batch['input_ids'].flatten()) * (float('inf') if number == 1 else 1)).backward()\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
        "    optimizer.zero_grad()\n"
    )
    run = measure(code)
    assert [row["skipped"] for row in run.rows()] == [False, True, False], run.output
    assert run.rank()["skipped_steps"] == 1


@pytest.mark.parametrize(
    ("ending", "code", "expected"),
    [
        ("import sys\nsys.exit(3)", 3, ("failed", "The script ended itself with exit code 3.", "exit")),
        ("raise ValueError('no more')", 1, ("failed", "ValueError: no more", "exception")),
        ("raise MemoryError('too much')", 1, ("host_oom", "MemoryError: too much", "exception")),
        ("import os\nos._exit(0)", 0, ("ok", None, "finished")),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
            -signal.SIGKILL,
            ("interrupted", "The process was killed, or it still runs.", "running"),
        ),
    ],
    ids=["exit", "exception", "host memory", "exit at once", "kill"],
)
def test_each_end_is_told(measure, ending, code, expected):
    run = measure(LOOP + EVERY_STEP + ending)
    rank = run.rank()
    assert run.returncode == code, run.output
    assert (rank["status"], rank["reason"], rank["attached"]["ended"]) == expected
    assert len(run.rows()) == 6 and (rank["host_probe"] is not None) == (rank["status"] == "ok")
    if expected[-1] == "exception":
        assert rank["attached"]["where"] == f"script.py:{len((LOOP + EVERY_STEP + ending).splitlines())}"


def test_an_out_of_memory_names_phase_line_and_bytes(measure):
    code = LOOP + (
        "class Full(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(context, x):\n"
        "        return x.clone()\n"
        "    @staticmethod\n"
        "    def backward(context, gradient):\n"
        "        raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has')\n"
        "net.append(nn.Module())\n"
        "net[-1].forward = Full.apply\n" + EVERY_STEP
    )
    run = measure(code)
    rank = run.rank()
    assert (run.returncode, rank["status"]) == (1, "gpu_oom"), run.output
    assert rank["oom"]["requested_bytes"] == 2 * 2**30
    assert (rank["oom"]["phase"], rank["oom"]["step"]) == ("backward", 1)
    assert rank["oom"]["where"].startswith("script.py:")
    assert rank["attached"]["peak"]["samples"] == 2
    assert rank["host_probe"], "its steps have times, too"


def test_an_optimizer_that_never_steps(measure):
    rank = measure(LOOP).rank()
    assert (rank["status"], rank["reason"]) == ("failed", "no optimizer step seen")


def test_a_process_without_an_optimizer_leaves_nothing(measure):
    assert measure("import torch\nnet = torch.nn.Linear(2, 2)\nnet(torch.ones(2)).sum().backward()").files == []


def test_a_failing_meter_is_written_down_and_the_script_goes_on(measure):
    def break_it(package):
        with (package / "phases.py").open("a") as file:
            file.write(
                "\n\ndef broken(*args, **kwargs):\n    raise RuntimeError('broken')\n\n\nTimeline.cut = broken\n"
            )

    run = measure(TRAINING + "print('the end')", prepare=break_it)
    assert run.returncode == 0 and run.output == "the end\n"
    assert any("RuntimeError: broken" in error for error in run.rank()["attached"]["meter_errors"])


DISTRIBUTED = """
import atexit, os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = os.environ["RANK"]
atexit.register(lambda: os.write(1, f"atexit {rank}\\n".encode()))
dist.init_process_group("gloo")
net = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.AdamW(net.parameters())
try:
    for number in range(6):
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 3 and rank == os.environ.get("FAILS"):
            raise ValueError("boom")
finally:
    os.write(1, f"finally {rank}\\n".encode())
print("saved", rank, flush=True)
torch.save(net.state_dict(), f"weights{rank}.pt")
dist.barrier()
"""


def test_steps_end_all_ranks_at_once_and_finalizers_run(measure):
    run = measure(DISTRIBUTED, ranks=2, steps=3)
    assert run.returncode == 0, run.output
    assert sorted(run.output.split("\n")) == ["", "atexit 0", "atexit 1", "finally 0", "finally 1"]
    for number in (0, 1):
        rank = run.rank(number)
        assert (rank["status"], rank["attached"]["ended"], len(run.rows(number))) == ("ok", "stopped", 3)
        assert (rank["attached"]["world_size"], rank["attached"]["local_rank"]) == (2, number)
        assert (rank["host_probe"] is None) == (number > 0), "one rank of a node probes its host"
        assert rank["attached"]["models"][0]["wrappers"] == ["DistributedDataParallel"]


def test_the_rank_that_fails_and_the_one_that_waits_for_it(measure):
    run = measure(DISTRIBUTED, ranks=2, environ={"FAILS": "1"})
    assert run.returncode != 0
    assert (run.rank(1)["status"], run.rank(1)["reason"]) == ("failed", "ValueError: boom")
    assert run.rank(0)["status"] in ("infra", "interrupted") and len(run.rows(0)) == 4


def test_two_trainings_one_after_the_other_are_told_apart(measure):
    code = (
        LOOP
        + EVERY_STEP
        + "import subprocess, sys\nif not sys.argv[1:]: subprocess.run([sys.executable, 'script.py', 'x'])"
    )
    first, *others = sorted(measure(code).files, key=len)
    assert first == "rank0.json" and [other.rpartition("/")[2] for other in others] == ["rank0.json"]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_ranks_that_the_script_starts_itself(measure, start_method):
    code = (
        "import os, torch, torch.multiprocessing as mp\n"
        "def train(rank):\n"
        "    os.environ['RANK'] = str(rank)\n"
        "    weight = torch.nn.Parameter(torch.ones(2))\n"
        "    optimizer = torch.optim.SGD([weight], 0.1)\n"
        "    for _ in range(2):\n"
        "        weight.sum().backward()\n"
        "        optimizer.step()\n"
        f"if __name__ == '__main__':\n    mp.start_processes(train, nprocs=2, start_method='{start_method}')\n"
    )
    run = measure(code)
    assert run.files == ["rank0.json", "rank1.json"], run.output
    assert [run.rank(number)["attached"]["steps"] for number in (0, 1)] == [2, 2]


def test_packages_outside_site_packages_are_not_the_users_code(measure, tmp_path):
    (tmp_path / "library-1.0.dist-info").mkdir()  # as pip install --target leaves it
    (tmp_path / "library.py").write_text("def step(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n")
    code = LOOP + "import library\nlibrary.step(net(pad(texts)['input_ids']).sum(), optimizer)\n"
    phases = measure(code, environ={"PYTHONPATH": str(tmp_path)}).rank()["attached"]["phases"]
    assert phases["first_backward"]["where"] == f"script.py:{len(code.splitlines())}"
