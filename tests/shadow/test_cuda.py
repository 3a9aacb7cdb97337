"""``torch.cuda`` without a GPU answers as with one."""

import pytest

from memlab.simulator.trace.events import Alloc, RecordStream, Synchronize
from tests.shadow.one_rank import run

pytestmark = pytest.mark.shadow

ANSWERS = """
import torch
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_name())
print(torch.cuda.get_device_capability(), torch.cuda.mem_get_info()[1] >> 30, torch.cuda.is_bf16_supported())
print(torch.empty(2, device="cuda").device, torch.accelerator.current_accelerator(), torch.version.cuda is not None)
with torch.cuda.device(1):
    print(torch.empty(2, device="cuda").device, torch.cuda.current_device())
"""


def test_the_gpus_are_those_that_were_described(tmp_path):
    assert run(tmp_path, ANSWERS)[1].splitlines() == [
        "True 2 NVIDIA H200",
        "(9, 0) 139 True",
        "cuda:0 cuda True",
        "cuda:1 1",
    ]


MEMORY = """
import torch
kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
freed = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
del freed
print(torch.cuda.memory_allocated() >> 20, torch.cuda.max_memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20)
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.max_memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20)
"""


def test_the_program_sees_the_memory_that_it_takes(tmp_path):
    assert run(tmp_path, MEMORY)[1].splitlines() == ["3 43 60", "3 20"]


STREAMS = """
import torch
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    tensor = torch.empty(4 << 20, device="cuda")
    done = side.record_event()
print(torch.cuda.current_stream() == torch.cuda.default_stream(), done.query())
torch.cuda.current_stream().wait_event(done)
tensor.record_stream(torch.cuda.current_stream())
done.synchronize()
torch.cuda.synchronize()
"""


def test_streams_and_events_are_recorded(tmp_path):
    trace, printed = run(tmp_path, STREAMS)
    assert printed.splitlines() == ["True False"]
    assert [type(event) for event in trace.events if isinstance(event, RecordStream | Synchronize)] == [
        RecordStream,
        Synchronize,
        Synchronize,
    ]
    assert next(event for event in trace.events if isinstance(event, Alloc)).stream == 1  # the side stream


LOOP = """
import threading, torch
from torch.utils.data import DataLoader
loss = torch.ones(1 << 20, device="cuda").sum()
print(f"{loss:.3f}", f"{torch.tensor(2, device='cuda'):03d}")
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(), end.record()
print(start.elapsed_time(end))
torch.cuda.memory._dump_snapshot("snapshot.pickle")
torch.cuda.memory.reset_peak_host_memory_stats()
print(len(list(DataLoader(range(8), 2, False, None, None, 1))))

class Prefetch(threading.Thread):
    def run(self):
        self.batch = torch.ones(64 << 20, dtype=torch.uint8).cuda()

thread = Prefetch()
thread.start()
thread.join()
print(torch.cuda.memory_allocated() >> 20)
"""


def test_what_loops_of_ones_own_do_is_answered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace, printed = run(tmp_path, LOOP)
    assert printed.splitlines() == ["1.000 002", "1.0", "4", "64"]
    assert any("start.elapsed_time(end) at" in sentence and "as 1.0" in sentence for sentence in trace.assumed)


GENERATOR = """
import torch
torch.cuda.manual_seed(5)
state = torch.cuda.get_rng_state()
torch.cuda.default_generators[0].set_offset(8)
print(state.tolist() == [5, *15 * [0]], torch.cuda.get_rng_state().view(torch.int64).tolist())
torch.cuda.set_rng_state(state)
print(torch.cuda.initial_seed(), torch.cuda.get_rng_state().view(torch.int64).tolist())
"""


def test_the_state_of_a_generator_is_a_seed_and_an_offset_which_random_dtensors_set(tmp_path):
    _, printed = run(tmp_path, GENERATOR)
    assert printed.splitlines() == ["True [5, 8]", "5 [5, 0]"]
