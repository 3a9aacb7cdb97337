"""The recorder of a memory history, with torch's own functions above a stand-in of its allocator and of the driver."""

import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from fake_allocator import Allocator
from torch._C._distributed_c10d import Backend

from memlab.meters import driver_readings, own_errors
from memlab.meters.collectives import COLLECTIVES, OF_DDP
from memlab.meters.memory_history import MARKS, SNAPSHOT, MemoryHistory
from memlab.meters.out_of_memory import FailedRequest

MIB = 1 << 20
TOTAL, CONTEXT, OTHERS = 1000 * MIB, 500 * MIB, 30 * MIB


class Gpu(Allocator):
    """The allocator, and the driver of a GPU on which another process has memory."""

    def __init__(self):
        super().__init__()
        self.has_context, self.own, self.others = False, 0, OTHERS
        self.on_second = 0  # bytes of this process on a second GPU; 0: it has no context there
        self.begin = None
        self.label, self.recordings, self.entries = "", [], []

    @property
    def reserved(self) -> int:
        return 2 * self.allocated  # as the stand-in's counters say

    def makes_context(self, *args) -> None:
        if not self.has_context:
            self.has_context, self.own = True, CONTEXT

    def change(self, size: int) -> None:
        super().change(size)
        self.entries.append(("alloc" if size > 0 else "free", size, self.label))

    def runs_out(self, limit: int = TOTAL) -> FailedRequest:
        """Note a request that fails, as torch does, with all that is free on the device."""
        free, _ = self.free_and_total(0)
        self.entries.append({"action": "oom", "device_free": free})
        return FailedRequest(0, 900 * MIB, limit, free)

    def comes(self, nbytes: int) -> None:
        """Something of this process appears outside the allocator."""
        self.own += nbytes

    def used(self) -> int:
        return self.others + self.own + self.reserved

    def free_and_total(self, device: int) -> tuple[int, int]:
        return TOTAL - (self.on_second if device else self.used()), TOTAL

    def record(self, enabled="all", **options) -> None:
        self.recordings.append(enabled and options["max_entries"])
        if not enabled:
            self.entries.clear()


class Nvml:
    def __init__(self, gpu: Gpu):
        self.gpu = gpu

    def count(self) -> int:
        return 2

    def used_bytes(self, index: int) -> int:
        return self.gpu.on_second if index else self.gpu.used()

    def processes(self, index: int) -> dict[int, int]:
        if index:
            return {os.getpid(): self.gpu.on_second}
        return {1: self.gpu.others, os.getpid(): self.gpu.own + self.gpu.reserved}


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    gpu = Gpu()
    replaced = {
        torch._C: {
            "_cuda_memoryStats": gpu.functions()._cuda_memoryStats,
            "_cuda_hasPrimaryContext": lambda device: bool(gpu.on_second) if device else gpu.has_context,
        },
        torch.cuda: {
            "current_device": lambda: 0,
            "device_count": lambda: 2,
            "mem_get_info": gpu.free_and_total,
            "_get_nvml_device_index": lambda device: device,
            "_lazy_call": lambda function: setattr(gpu, "begin", function),
            "set_device": gpu.makes_context,
        },
        torch.cuda.memory: {
            "_record_memory_history": gpu.record,
            "_set_memory_metadata": lambda label: setattr(gpu, "label", label),
            "_snapshot": lambda: {"device_traces": [list(gpu.entries)]},
        },
        torch.nn.Module: {"_apply": torch.nn.Module._apply},
        dist.ProcessGroup: {name: value for name, value in vars(dist.ProcessGroup).items() if name in COLLECTIVES}
        | {"allreduce": lambda group, *args: gpu.comes(40 * MIB)},
        dist: {name: vars(dist)[name] for name in OF_DDP},
        Backend: {"eager_connect_single_device": Backend.eager_connect_single_device},
    }
    for owner, names in replaced.items():
        for name, value in names.items():
            monkeypatch.setattr(owner, name, value, raising=False)
    monkeypatch.setattr(driver_readings, "Nvml", lambda: Nvml(gpu))
    return gpu


@pytest.fixture
def history(gpu, tmp_path):
    """A history that has begun: the process has used the GPU, but has no context yet."""
    at = SimpleNamespace(piece=("forward", 2, "train.py:9"))
    history = MemoryHistory(lambda: tmp_path / "rank0.json", lambda: [], lambda: at.piece, goes_on=True)
    gpu.begin()
    yield history
    history.end()


def written(tmp_path) -> tuple[list, dict]:
    place = tmp_path / "rank0.json"
    snapshot = pickle.loads(place.with_suffix(SNAPSHOT).read_bytes())
    return snapshot["device_traces"][0], json.loads(place.with_suffix(MARKS).read_text())


def read_on(device: int, tmp_path) -> dict:
    return written(tmp_path)[1]["outside"]["devices"][str(device)]


class FirstProduct(torch.nn.Module):
    def __init__(self, gpu: Gpu):
        super().__init__()
        self.gpu = gpu

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.gpu.comes(66 * MIB)
        return inputs


def group() -> SimpleNamespace:
    return SimpleNamespace(group_desc="default_pg", size=lambda: 2)


def test_the_driver_is_read_around_what_takes_memory_outside_the_allocator(gpu, history, tmp_path):
    torch.cuda.set_device(0)
    gpu.change(10 * MIB)
    dist.ProcessGroup.allreduce(group(), [])
    history.piece_ends("engine_init", None, "train.py:3", True)
    torch.nn.Sequential(FirstProduct(gpu))(torch.ones(2))
    gpu.others += 7 * MIB
    history.piece_ends("first_forward", 1, "train.py:4", True)
    history.end()
    outside = read_on(0, tmp_path)
    assert outside["before"] == {"used_bytes": OTHERS, "processes": {"1": OTHERS, str(os.getpid()): 0}}
    found = [(each["phase"], each["module"], each["call"]) for each in outside["readings"]]
    assert found == [
        ("engine_init", "", "set_device"),
        ("engine_init", "", "allreduce of default_pg (2 ranks)"),
        ("first_forward", "Sequential.0", None),
        ("first_forward", "", None),
    ]
    grown = [each["used_bytes"] - each["reserved_bytes"] for each in outside["readings"]]
    assert grown == [OTHERS + CONTEXT + more * MIB for more in (0, 40, 106, 113)]
    own = [each["processes"][str(os.getpid())] - each["reserved_bytes"] for each in outside["readings"]]
    assert own == [CONTEXT + more * MIB for more in (0, 40, 106, 106)]
    assert all(each["time_us"] <= each["until_us"] for each in outside["readings"])


def test_each_gpu_of_the_process_is_read_from_its_first_use_on(gpu, history, tmp_path):
    gpu.makes_context()
    history.piece_ends("load", None, None, True)
    gpu.on_second = CONTEXT
    history.piece_ends("first_forward", 1, None, True)
    history.end()
    second = read_on(1, tmp_path)
    assert second["gpu"] == 1 and second["before"] == {"used_bytes": 0, "processes": {str(os.getpid()): 0}}
    assert [each["phase"] for each in second["readings"]] == ["first_forward"]
    assert [each["phase"] for each in read_on(0, tmp_path)["readings"]] == ["load"]


def test_a_part_of_a_gpu_has_no_index_in_nvml(gpu, history, tmp_path, monkeypatch):
    def unknown(device: int) -> int:  # as torch does for CUDA_VISIBLE_DEVICES=MIG-...
        raise RuntimeError(f"device {device} is not visible (CUDA_VISIBLE_DEVICES=[])")

    monkeypatch.setattr(torch.cuda, "_get_nvml_device_index", unknown)
    gpu.makes_context()
    history.piece_ends("load", None, None, True)
    history.end()
    found = read_on(0, tmp_path)
    assert found["gpu"] is None and found["before"] is None
    (reading,) = found["readings"]
    assert reading["used_bytes"] == OTHERS + CONTEXT and reading["processes"] == {}


def test_what_others_use_is_read_right_before_the_first_use(gpu, tmp_path):
    history = MemoryHistory(lambda: tmp_path / "rank0.json", lambda: [], lambda: (None, None, None))
    gpu.others += 5 * MIB  # the context of another rank
    gpu.begin()
    gpu.makes_context()
    history.end()
    assert read_on(0, tmp_path)["before"]["used_bytes"] == OTHERS + 5 * MIB


def test_a_model_that_is_built_on_the_gpu_makes_the_context_with_its_first_parameter(gpu, history, tmp_path):
    class OnTheGpu(torch.nn.Module):
        def __init__(self):
            super().__init__()
            gpu.makes_context()
            self.weight = torch.nn.Parameter(torch.empty(2))
            gpu.comes(92 * MIB)  # the code of the kernel that fills it
            self.bias = torch.nn.Parameter(torch.empty(2))

    OnTheGpu()
    history.piece_ends("model_build", None, "train.py:3", True)
    history.end()
    found = [(each["call"], each["used_bytes"] - OTHERS) for each in read_on(0, tmp_path)["readings"]]
    assert found == [("parameter", CONTEXT), (None, CONTEXT + 92 * MIB)]


def test_convolutions_and_triton_kernels_are_named(gpu, history, tmp_path, monkeypatch):
    class Convolution(torch.nn.Conv2d):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            gpu.comes(30 * MIB)
            outputs = super().forward(inputs)
            outputs.grad_fn.register_hook(lambda *_: gpu.comes(8 * MIB))  # in its backward
            return outputs

    class CompiledKernel:
        name = "_swiglu"

        def _init_handles(self) -> None:
            gpu.comes(2 * MIB)

    history._watch_triton(SimpleNamespace(CompiledKernel=CompiledKernel))
    gpu.makes_context()
    history.piece_ends("load", None, None, True)
    outputs = torch.nn.Sequential(Convolution(1, 1, 1), torch.nn.ReLU())(torch.ones(1, 1, 2, 2))
    CompiledKernel()._init_handles()
    outputs.sum().backward()
    history.piece_ends("first_step", 1, None, True)
    history.end()
    found = [(each["module"], each["call"]) for each in read_on(0, tmp_path)["readings"]]
    of_convolution = ("Sequential.0", "convolution")
    assert found[1:] == [of_convolution, ("", "Triton kernel _swiglu"), of_convolution]


def test_threads_that_run_backward_at_once_have_labels_of_their_own(gpu, history, monkeypatch):
    """As autograd's threads of two GPUs with replicas of one model."""
    barrier, labels, seen = threading.Barrier(2), {}, []
    monkeypatch.setattr(
        torch.cuda.memory, "_set_memory_metadata", lambda label: labels.update({threading.get_ident(): label})
    )

    class Notes(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs = inputs * 2
            outputs.grad_fn.register_hook(lambda *_: seen.append(labels[threading.get_ident()]))
            return outputs

    def step(model: torch.nn.Module) -> None:
        loss = model(torch.ones(2, requires_grad=True)).sum()
        barrier.wait(10)
        loss.backward()

    gpu.makes_context()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(step, [torch.nn.Sequential(Notes()) for _ in range(2)]))
    assert seen == ["0|Sequential.0", "0|Sequential.0"]


def test_another_triton_is_imported_as_without_memlab(history, monkeypatch):
    monkeypatch.setattr(own_errors, "noted", [])
    history._watch_triton(SimpleNamespace(CompiledKernel=object))
    assert [text.partition(":")[0] for text in own_errors.noted] == ["MemoryHistory._watch_triton"]


def test_a_program_without_a_context_is_not_made_to_have_one(gpu, history, tmp_path):
    history.piece_ends("load", None, None, True)
    history.end()
    assert not gpu.has_context and written(tmp_path)[1]["outside"]["devices"] == {}


def test_the_running_piece_is_noted_when_the_script_ends_before_its_step(gpu, history, tmp_path):
    gpu.makes_context()
    history.piece_ends("engine_init", None, "train.py:3", True)
    gpu.change(5 * MIB)
    history.end()
    entries, marks = written(tmp_path)
    assert entries[-1] == ("alloc", 5 * MIB, "1|")
    assert [piece["phase"] for piece in marks["pieces"]] == ["engine_init", "forward"]
    assert marks["pieces"][1] == {"phase": "forward", "step": 2, "where": "train.py:9", "ends_phase": False}


def test_after_the_chosen_steps_the_last_actions_are_kept_for_an_out_of_memory(gpu, history, tmp_path):
    gpu.makes_context()
    gpu.change(5 * MIB)
    history.piece_ends("backward", 1, "train.py:9", True)
    history.keep()
    kept = written(tmp_path)
    gpu.change(6 * MIB)
    history.piece_ends("forward", 2, "train.py:8", True)
    history.keep()  # at the end of each further step
    assert written(tmp_path) == kept and kept[0] == [("alloc", 5 * MIB, "0|")]
    gpu.change(7 * MIB)
    history.out_of_memory(gpu.runs_out(limit=gpu.reserved + 3 * MIB))
    entries, marks = written(tmp_path)
    could_take = {"action": "oom", "device_free": 3 * MIB}  # the allocator may not take all that is free
    assert entries == [("alloc", 6 * MIB, "1|"), ("alloc", 7 * MIB, "2|"), could_take]
    assert [piece["phase"] for piece in marks["pieces"]] == ["forward", "forward"]
    assert marks["first_piece"] == 1
    most, least = gpu.recordings[0], gpu.recordings[2]
    assert gpu.recordings == [most, None, least, None] and least < most
    assert not history.records
    history.end()  # the script went on
    assert written(tmp_path)[1] == marks


def test_on_a_full_disk_the_chosen_steps_stay(gpu, history, tmp_path, monkeypatch):
    def fills_the_disk(snapshot, file, protocol):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    gpu.makes_context()
    gpu.change(5 * MIB)
    history.keep()
    kept, files = written(tmp_path), sorted(tmp_path.iterdir())
    gpu.change(6 * MIB)
    monkeypatch.setattr(pickle, "dump", fills_the_disk)
    history.out_of_memory(gpu.runs_out())
    assert written(tmp_path) == kept and sorted(tmp_path.iterdir()) == files
    assert not history.records and gpu.recordings[-1] is None


def test_on_a_full_disk_recording_ends_all_the_same(gpu, tmp_path, monkeypatch):
    """Otherwise the meters would try again at the end of each further step, and the steps would stay slow."""

    def fills_the_disk(snapshot, file, protocol):
        raise OSError(28, "No space left on device")

    history = MemoryHistory(lambda: tmp_path / "rank0.json", lambda: [], lambda: ("forward", 2, None))
    gpu.begin()
    gpu.makes_context()
    monkeypatch.setattr(pickle, "dump", fills_the_disk)
    history.keep()
    assert not history.records and gpu.recordings[-1] is None


def test_without_an_out_of_memory_the_chosen_steps_stay(gpu, history, tmp_path):
    gpu.makes_context()
    gpu.change(5 * MIB)
    history.keep()
    kept = written(tmp_path)
    gpu.change(6 * MIB)
    history.end()
    assert written(tmp_path) == kept and gpu.recordings[-1] is None


def test_after_the_chosen_steps_recording_ends_unless_it_is_to_go_on(gpu, tmp_path):
    history = MemoryHistory(lambda: tmp_path / "rank0.json", lambda: [], lambda: ("forward", 2, None))
    gpu.begin()
    gpu.makes_context()
    gpu.change(5 * MIB)
    history.keep()
    kept, label = written(tmp_path), gpu.label
    torch.nn.Linear(2, 2)(torch.ones(2))
    history.piece_ends("forward", 3, None, True)
    history.keep()
    history.end()
    assert not history.records and gpu.recordings[1:] == [None] and gpu.label == label
    assert written(tmp_path) == kept and kept[0] == [("alloc", 5 * MIB, "0|")]
