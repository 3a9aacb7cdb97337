"""What is kept when memory runs out and nothing is recorded, with a stand-in of torch's allocator and of the driver."""

import gc
import hashlib
import json
import pickle
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_allocator import Allocator

from memlab.meters import driver_readings, out_of_memory, snapshot_files
from memlab.meters.memory import Reading
from memlab.meters.options import MeterOptions
from memlab.meters.out_of_memory import MARKS, SNAPSHOT, FailedRequest, OutOfMemoryKeeper
from memlab.meters.phases import TimedPiece
from memlab.meters.session import Session

MIB = 1 << 20
TOTAL, HELD = 1000 * MIB, 300 * MIB
REQUEST = FailedRequest(device=1, nbytes=80 * MIB, limit=TOTAL, free=50 * MIB)


@pytest.fixture(autouse=True)
def gpu(monkeypatch) -> Allocator:
    """A GPU, the second of two, of which the allocator holds twice what is allocated."""
    gpu = Allocator()
    gpu.change(HELD)
    replaced = {
        torch._C: {
            "_cuda_memoryStats": gpu.functions()._cuda_memoryStats,
            "_cuda_hasPrimaryContext": lambda device: device == 1,
            "_cuda_getCurrentRawStream": lambda device: 7,
        },
        torch.cuda: {
            "device_count": lambda: 2,
            "mem_get_info": lambda device: (50 * MIB, TOTAL),
            "_get_nvml_device_index": lambda device: device,
        },
        torch.cuda.memory: {"_snapshot": lambda: {"segments": [], "device_traces": [["the script's own"], []]}},
        snapshot_files: {"address": lambda tensor: tensor.untyped_storage().data_ptr() or None},
    }
    for owner, names in replaced.items():
        for name, value in names.items():
            monkeypatch.setattr(owner, name, value, raising=False)
    nvml = SimpleNamespace(count=lambda: 2, used_bytes=lambda index: 0, processes=lambda index: {})
    monkeypatch.setattr(driver_readings, "Nvml", lambda: nvml)
    return gpu


@pytest.fixture
def keeper(tmp_path) -> OutOfMemoryKeeper:
    return OutOfMemoryKeeper(lambda: tmp_path / "rank0.json")


def run_out(keeper: OutOfMemoryKeeper, request: FailedRequest = REQUEST, step: int = 9) -> None:
    keeper.keep(request, "forward", step, "train.py:5")
    keeper.end()


def written(folder: Path) -> tuple[dict, dict]:
    place = folder / "rank0.json"
    snapshot = pickle.loads(place.with_suffix(SNAPSHOT).read_bytes())
    return snapshot, json.loads(place.with_suffix(MARKS).read_text())


def test_the_failed_request_is_the_only_action_and_says_what_was_free(keeper, tmp_path):
    run_out(keeper)
    snapshot, marks = written(tmp_path)
    (failed,) = snapshot["device_traces"][1]
    assert snapshot["device_traces"][0] == []
    assert (failed["action"], failed["size"], failed["device_free"], failed["stream"]) == ("oom", 80 * MIB, 50 * MIB, 7)
    assert failed["frames"][0]["name"] == "run_out" and failed["frames"][0]["filename"] == __file__
    assert marks["pieces"] == [{"phase": "forward", "step": 9, "where": "train.py:5", "ends_phase": False}]
    assert marks["device"] == 1
    (reading,) = marks["outside"]["devices"]["1"]["readings"]
    assert (reading["used_bytes"], reading["reserved_bytes"]) == (TOTAL - 50 * MIB, 2 * HELD)


def test_the_marks_name_the_snapshot_beside_which_they_lie(keeper, tmp_path):
    run_out(keeper)
    content = (tmp_path / "rank0.json").with_suffix(SNAPSHOT).read_bytes()
    assert written(tmp_path)[1]["snapshot_sha256"] == hashlib.sha256(content).hexdigest()


def test_what_the_allocator_may_not_take_is_not_free(keeper, tmp_path):
    run_out(keeper, REQUEST._replace(limit=2 * HELD + 3 * MIB))
    assert written(tmp_path)[0]["device_traces"][1][0]["device_free"] == 3 * MIB


def test_a_script_may_add_what_is_no_text_to_the_import_paths(keeper, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    run_out(keeper)
    assert written(tmp_path)[1]["import_paths"] == sys.path[:-1]


class FailsInForward(torch.nn.Module):
    def __init__(self, keeper: OutOfMemoryKeeper):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("scale", torch.ones(2))
        self.keeper = keeper

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        run_out(self.keeper)
        return inputs * self.weight


def test_the_running_module_and_the_owners_are_named(keeper, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), FailsInForward(keeper))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model(torch.ones(1, 2))
    snapshot, marks = written(tmp_path)
    (failed,) = snapshot["device_traces"][1]
    assert failed["user_metadata"] == "0|Sequential.1"
    assert [frame["name"] for frame in failed["frames"][:2]] == ["run_out", "forward"]
    listed = {block: marks["owners"]["list"][number] for block, number in marks["owners"]["looks"]["0"].items()}
    held = model[1].weight, model[1].weight.grad, optimizer.state[model[1].weight]["exp_avg"], model[1].scale
    owners = [listed[str(tensor.untyped_storage().data_ptr())] for tensor in held]
    assert [owner[0] for owner in owners] == ["weights", "gradients", "optimizer states", "buffers of modules"]
    assert [owner[2] for owner in owners] == [
        f"Sequential.1.{name}" for name in ("weight", "weight", "weight", "scale")
    ]


def test_a_model_that_is_just_being_copied_is_left_out(keeper, tmp_path):
    """``copy.deepcopy`` makes the object first, and then its parameters, for which there may be no memory."""
    model = torch.nn.Linear(2, 2)
    copy = torch.nn.Linear.__new__(torch.nn.Linear)
    run_out(keeper)
    owners = written(tmp_path)[1]["owners"]
    assert str(model.weight.untyped_storage().data_ptr()) in owners["looks"]["0"]
    assert not vars(copy)


def test_gradients_and_buckets_of_deepspeed_are_named(keeper, tmp_path, monkeypatch):
    class ZeROOptimizer:
        def __init__(self):
            self.averaged_gradients = {0: [torch.ones(3)], 1: None}
            self.ipg_buckets = {torch.float32: IPGBucket()}

    class IPGBucket:
        def __init__(self):
            self.buffer = [torch.ones(5), torch.ones(5)]

    monkeypatch.setitem(sys.modules, "deepspeed.runtime.base_optimizer", SimpleNamespace(ZeROOptimizer=ZeROOptimizer))
    optimizer = ZeROOptimizer()
    run_out(keeper)
    owners = written(tmp_path)[1]["owners"]
    held = [optimizer.averaged_gradients[0][0], *optimizer.ipg_buckets[torch.float32].buffer]
    found = [owners["list"][owners["looks"]["0"][str(tensor.untyped_storage().data_ptr())]] for tensor in held]
    named = [("gradients", "averaged_gradients"), *[("communication buckets", "ipg_buckets")] * 2]
    assert [(owner[0], owner[2]) for owner in found] == named


def test_another_version_of_deepspeed_may_hold_its_buffers_otherwise(keeper, tmp_path, monkeypatch):
    class ZeROOptimizer:
        def __init__(self):
            self.ipg_buckets = {torch.float32: object()}

    monkeypatch.setitem(sys.modules, "deepspeed.runtime.base_optimizer", SimpleNamespace(ZeROOptimizer=ZeROOptimizer))
    optimizer, model = ZeROOptimizer(), torch.nn.Linear(2, 2)
    run_out(keeper)
    assert optimizer.ipg_buckets
    assert str(model.weight.untyped_storage().data_ptr()) in written(tmp_path)[1]["owners"]["looks"]["0"]


class FailsInBackward(torch.autograd.Function):
    keeper: OutOfMemoryKeeper

    @staticmethod
    def forward(ctx, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        run_out(FailsInBackward.keeper)
        return gradient


def test_in_a_backward_the_node_is_named(keeper, tmp_path):
    FailsInBackward.keeper = keeper
    FailsInBackward.apply(torch.ones(2, requires_grad=True)).sum().backward()
    frames = written(tmp_path)[0]["device_traces"][1][0]["frames"]
    assert frames[1]["name"] == "backward"
    assert frames[-1] == {"filename": "??", "line": 0, "name": "torch::autograd::FailsInBackwardBackward::apply()"}


def test_what_the_script_frees_after_it_is_freed_at_once(keeper):
    """A script that catches the failure tries a smaller batch: then the tensors of the first try must be gone."""
    session = Session(MeterOptions("folder"), SimpleNamespace(turn=lambda: None))
    session.callbacks.out_of_memory = lambda request, where: run_out(keeper, request)

    def too_large() -> weakref.ref:
        batch = torch.ones(2)
        session.runs_out_of_memory(*REQUEST)
        return weakref.ref(batch)

    gc.disable()
    try:
        assert too_large()() is None
    finally:
        gc.enable()


def test_the_last_of_several_is_kept(keeper, tmp_path):
    run_out(keeper, step=2)
    run_out(keeper, step=4)
    keeper.end()
    assert written(tmp_path)[1]["pieces"][0]["step"] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rank0.out_of_memory.json",
        "rank0.out_of_memory.pickle",
    ]


def test_on_a_full_disk_the_one_before_stays(keeper, tmp_path, monkeypatch):
    def fills_the_disk(snapshot, file, protocol):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    run_out(keeper, step=2)
    kept, files = written(tmp_path), sorted(tmp_path.iterdir())
    monkeypatch.setattr(pickle, "dump", fills_the_disk)
    run_out(keeper, step=4)
    assert written(tmp_path) == kept and sorted(tmp_path.iterdir()) == files


def part(allocated: int, peak_allocated: int, peak_reserved: int) -> TimedPiece:
    reading = Reading(end_allocated_bytes=allocated)
    reading.peak_allocated_bytes, reading.peak_reserved_bytes = peak_allocated, peak_reserved
    return TimedPiece("forward", reading, seconds=1.0, where=None, ends_phase=True)


def test_the_last_parts_of_the_run_are_remembered(keeper, tmp_path):
    keeper.piece_ends(None, None, part(1, 2, 3))
    for step in range(100):
        keeper.piece_ends("forward", step, part(10 + step, 20 + step, 30 + step))
    run_out(keeper)
    parts = written(tmp_path)[1]["last_parts"]
    assert len(parts) == out_of_memory.LAST_PARTS
    last = {name: parts[-1][name] for name in ("phase", "step", "allocated", "peak_allocated", "peak_reserved")}
    assert last == {"phase": "forward", "step": 99, "allocated": 109, "peak_allocated": 119, "peak_reserved": 129}


def test_threads_run_out_of_memory_one_after_the_other():
    session, inside, most = Session(MeterOptions("folder"), SimpleNamespace(turn=lambda: None)), [], []

    def keeps(request: FailedRequest, where: str | None) -> None:
        inside.append(request)
        time.sleep(0.05)
        most.append(len(inside))
        inside.remove(request)

    session.callbacks.out_of_memory = keeps
    threads = [threading.Thread(target=session.runs_out_of_memory, args=REQUEST._replace(device=n)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1]


SCRIPT = """
import torch
from memlab_attach.meters import start

torch._C._cuda_memoryStats = lambda device: {"reserved_bytes": {"all": {"current": 0}}}
torch._C._cuda_getCurrentRawStream = lambda device: 0
torch._C._cuda_hasPrimaryContext = lambda device: False
torch.cuda.device_count = lambda: 1
torch.cuda.memory._snapshot = lambda: {"segments": [], "device_traces": [[]]}

def run_out():  # torch calls this observer, which it has after the first use of a GPU
    start._file.session.runs_out_of_memory(0, 80 << 20, 1 << 30, 50 << 20)

run_out()
if %s:
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(net.parameters())
    for number, batch in enumerate(torch.utils.data.DataLoader(torch.randn(6, 64), batch_size=2)):
        loss = net(batch).sum()
        if number == 1:
            run_out()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_command_that_goes_on_keeps_the_last_one(measure):
    run = measure(SCRIPT % True)
    assert run.returncode == 0, run.output
    assert not run.rank()["attached"]["meter_errors"]
    marks = json.loads((run.folder / f"rank0{MARKS}").read_text())
    assert marks["pieces"] == [{"phase": "forward", "step": 2, "where": "script.py:12", "ends_phase": False}]
    assert run.rank()["attached"]["steps"] == 3 and run.rank()["status"] == "ok"


def test_a_process_that_never_trains_leaves_no_files(measure):
    run = measure(SCRIPT % False)
    assert run.returncode == 0, run.output
    assert not list(run.folder.rglob("rank0*"))
