"""Operators out of the Chrome trace of torch's profiler: what each takes on the host and on the device, by phase."""

import gzip
import json

import pytest

from memlab.core.errors import RecordError
from memlab.runs import operator_profile
from memlab.runs.operator_profile import OperatorTime, read_operators, summed_up, write_operators

MAIN, AUTOGRAD = 1, 2


def span(category: str, name: str, begin: float, length: float, thread: int = MAIN, **args) -> dict:
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length, "pid": 9, "tid": thread, "args": args}


def launch(begin: float, correlation: int, thread: int = MAIN) -> dict:
    return span("cuda_runtime", "cudaLaunchKernel", begin, 1, thread, correlation=correlation)


def memory(at: float, nbytes: int, device: int = 1) -> dict:
    args = {"Bytes": nbytes, "Device Type": device, "Device Id": 0}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "pid": 9, "tid": MAIN, "args": args}


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "ts": 0, "args": {"name": "python"}},
    span("user_annotation", "ProfilerStep#1", 0, 1000),
    span("user_annotation", "ProfilerStep#2", 1000, 2000),
    span("cpu_op", "aten::linear", 100, 60),
    span("cpu_op", "aten::addmm", 110, 40),
    span("cpu_op", "aten::empty", 115, 5),
    memory(117, 512),
    memory(118, 64, device=0),
    launch(130, 1),
    span("user_annotation", "memlab piece: forward", 200, 1),
    span("cpu_op", "aten::mm", 250, 20, AUTOGRAD),
    launch(255, 2, AUTOGRAD),
    memory(280, -512),
    span("user_annotation", "memlab piece: backward", 300, 1),
    span("user_annotation", "Optimizer.step#FusedAdam.step", 310, 50),
    launch(320, 3),
    span("user_annotation", "memlab piece: optimizer_step", 400, 1),
    launch(500, 4),
    span("kernel", "gemm", 140, 300, 7, correlation=1),
    span("kernel", "gemm", 440, 100, 7, correlation=2),
    span("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 400, 100, 8, correlation=4),
    span("kernel", "multi_tensor_adam", 600, 50, 7, correlation=3),
    span("kernel", "of an earlier launch", 700, 10, 7, correlation=99),
    span("gpu_user_annotation", "ProfilerStep#1", 0, 1000, 7),
]


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "rank0.profile.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode()))
    return summed_up(path)


def test_operators_get_the_kernels_that_they_launch(profile):
    assert {(row.phase, row.operator, row.kernel): row.seconds for row in profile.on_device} == pytest.approx(
        {
            ("forward", "aten::addmm", "gemm"): 150e-6,
            ("backward", "aten::mm", "gemm"): 50e-6,
            ("optimizer_step", "Optimizer.step#FusedAdam.step", "multi_tensor_adam"): 25e-6,
            ("", "", "Memcpy DtoH (Device -> Pinned)"): 50e-6,
            ("", "", "of an earlier launch"): 5e-6,
        }
    )


def test_steps_are_counted_and_kernels_that_overlap_count_once(profile):
    assert (profile.steps, profile.step_seconds) == (2, [1e-3, 2e-3])
    assert profile.busy_seconds == pytest.approx((400 + 50 + 10) * 1e-6 / 2)


def test_operators_have_their_own_time_and_the_memory_that_they_need(profile):
    host = {row.operator: row for row in profile.operators if not row.kernel}
    assert host["aten::linear"] == OperatorTime("forward", "aten::linear", "", 0.5, pytest.approx(10e-6), 0)
    assert host["aten::addmm"] == OperatorTime("forward", "aten::addmm", "", 0.5, pytest.approx(17.5e-6), 256)
    assert host["aten::mm"].phase == "backward"  # in the thread of autograd


def test_what_is_written_is_read(profile, tmp_path):
    write_operators(tmp_path / "rank0.operators.json", profile)
    assert read_operators(tmp_path / "rank0.operators.json") == profile


@pytest.mark.parametrize("text", ["[]", "{}", '{"steps": 1, "step_seconds": [], "busy_seconds": 0, "operators": [3]}'])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "file").write_text(text)
    with pytest.raises(RecordError, match="not the operators of a profile"):
        read_operators(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"text", gzip.compress(b"{}", mtime=0), gzip.compress(b'{"traceEvents": [1]}', mtime=0)),
        gzip.compress(b'{"traceEvents": [' + b"[" * 100_000, mtime=0),
        gzip.compress(b"{}", mtime=0)[:10] + b"\xff" * 20,
        gzip.compress(json.dumps({"traceEvents": [span("kernel", "", 10**400, 10**400)]}).encode(), mtime=0),
    ],
    ids=["empty", "text", "no events", "an event that is none", "nested", "damaged", "huge numbers"],
)
def test_another_trace_is_refused(tmp_path, content):
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(RecordError, match="not a Chrome trace"):
        summed_up(tmp_path / "file.gz")


@pytest.mark.parametrize(
    ("begin", "more", "words"),
    [(b'"', b"x" * 2**20, "an entry is too long"), (b"", b'{"name": ""}, ' * 2**16, "too large")],
)
def test_a_small_file_that_unpacks_to_a_large_one_is_not_read_to_its_end(tmp_path, monkeypatch, begin, more, words):
    monkeypatch.setattr(operator_profile, "LARGEST", 2**25)
    with gzip.open(tmp_path / "file.gz", "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [' + begin)
        for _ in range(40):
            file.write(more)
    with pytest.raises(RecordError, match=f"{words}; the limit is"):
        summed_up(tmp_path / "file.gz")
