"""What goes wrong in real runs: each fault has its status, its reason and its exit code, and leaves no process."""

import os
import signal

import pytest

pytestmark = pytest.mark.cpu

SHORT = ("seq_len=s128", "zero_stage=zero1", "zero_stage.reduce_bucket_size=1000000")


def struck(run) -> bool:
    return (run.folder.parent / "struck").exists()


@pytest.mark.core
@pytest.mark.long(20)
def test_out_of_memory_is_a_result(start):
    run = start(*SHORT, fault="oom:1:1")
    assert run.wait() == 3, run.output
    record = run.record
    assert record["status"] == "gpu_oom"
    assert "rank 1" in record["reason"] and "Tried to allocate 1.50 GiB" in record["reason"]
    (rank,) = [rank for rank in record["ranks"] if rank["rank"] == 1]
    assert rank["oom"] == {**rank["oom"], "step": 2, "requested_bytes": 3 * 2**29}
    assert rank["phases"]["first_backward"]["peak_allocated_bytes"] > 0
    assert run.alive() == []


@pytest.mark.long(60)
def test_a_hang_ends_at_the_time_limit_with_every_stack(start):
    run = start(*SHORT, "measure.timeout_s=60", fault="hang:0:1")
    assert run.wait() == 5, run.output
    assert run.record["status"] == "timeout"
    assert "strike" in run.log("rank0.log")  # where rank 0 sleeps
    assert "most recent call first" in run.log("rank1.log")
    assert run.alive() == []


@pytest.mark.long(20)
def test_a_killed_rank(start):
    run = start(*SHORT, fault="kill:1:1")
    assert run.wait() == 6, run.output
    assert run.record["status"] == "failed"
    assert "[1]" in run.record["reason"]
    assert run.alive() == []


@pytest.mark.long(20)
def test_a_killed_launcher_is_no_success(start):
    run = start(*SHORT, fault="kill_launcher:0:1")
    assert run.wait() == 6, run.output
    assert run.record["status"] == "failed"
    assert "launcher was killed" in run.record["reason"]
    assert run.alive() == []


@pytest.mark.long(20)
def test_a_signal_interrupts(start):
    run = start(*SHORT, fault="hang:0:1")
    run.wait_until(lambda: struck(run))
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130, run.output
    assert run.record["status"] == "interrupted"
    assert run.alive() == []


@pytest.mark.long(20)
def test_nothing_survives_when_memlab_itself_is_killed(start):
    run = start(*SHORT, fault="hang:0:1")
    run.wait_until(lambda: struck(run))
    run.process.kill()
    run.wait()
    run.wait_until(lambda: run.alive() == [], timeout=15)
    assert not (run.folder / "record.json").exists()


def test_a_meaningless_combination_never_starts(start):
    run = start("zero_stage=zero2", "offload=param")
    assert run.wait(30) == 8, run.output
    assert run.record["status"] == "unsupported"
    assert "zero_stage=zero3" in run.record["reason"]
    assert os.listdir(run.folder / "logs") == []
