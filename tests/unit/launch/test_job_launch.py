"""From jobs to records: one job, and several in a launch. A short script plays deepspeed; the rest is real."""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from played_sweeps import measure_job

from memlab.core.errors import MemlabError
from memlab.core.sizes import GIB
from memlab.files import build_locks
from memlab.launch import job_launch, process
from memlab.launch.job_launch import LaunchControl, measure_jobs
from memlab.launch.nodes import GpuPool
from memlab.system import shared_memory as segments
from memlab.system.environment import extensions_dir, fingerprint
from memlab.system.machine import Gpu, Machine

CPU = Machine()
H200S = tuple(Gpu(str(index), "NVIDIA H200", GIB, (9, 0)) for index in range(4))

pytestmark = pytest.mark.usefixtures("quick")

BOTH_RANKS = "both(folders[0])"


def test_a_run_becomes_a_record(deepspeed, job):
    deepspeed(BOTH_RANKS)
    record = measure_job(job())
    assert (record.status, record.reason, record.source, record.isolation) == ("ok", None, "measured", "fresh")
    assert job().folder.read_record() == record
    assert [rank["rank"] for rank in record.ranks] == [0, 1]
    assert record.steps["seconds"] == [0.5, 0.4, 0.6] and record.steps["warmup_seconds"] == [2.0, 0.5]
    assert record.timing["train_s"] == 2.0 and 0 < record.timing["total_s"] < 60
    assert record.environment["cuda"] == "13.0" and "runtime" not in record.ranks[0]
    assert record.fingerprint == fingerprint(job().plan, CPU)


def test_a_build_is_told_before_it_begins(deepspeed, job, monkeypatch):
    deepspeed(BOTH_RANKS)
    monkeypatch.setattr(job_launch, "unbuilt_ops", lambda plan: ["ShareMemComm", "CPUAdam"])
    told = []
    measure_job(job(), on_wait=told.append)
    assert told == ["building DeepSpeed's ShareMemComm, CPUAdam, once for these versions: this takes minutes"]


def test_a_lock_that_the_ranks_wait_for_in_vain_is_named_once(deepspeed, job, monkeypatch):
    """A build is killed while another launch runs: nothing removes its lock before the ranks wait for it."""
    deepspeed("time.sleep(1); both(folders[0])")
    lock = extensions_dir() / "cpu_adam" / "lock"
    monkeypatch.setattr(job_launch, "sweep_stale_locks", lambda: (lock.parent.mkdir(parents=True), lock.touch()))
    monkeypatch.setattr(job_launch, "STALE_S", 0.1)
    monkeypatch.setattr(build_locks, "STALE_S", 0.1)
    told = []
    measure_job(job(), on_wait=told.append)
    assert told == [build_locks.told(lock)] and lock.exists()


def test_a_lock_that_another_process_holds_is_named_with_the_process(deepspeed, job, monkeypatch):
    deepspeed("time.sleep(1); both(folders[0])")
    lock = extensions_dir() / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    for module in (job_launch, build_locks):
        monkeypatch.setattr(module, "STALE_S", 0.1)
    told = []
    with lock.open("w"):
        measure_job(job(), on_wait=told.append)
        assert told == [build_locks.told(lock)] and f"process {os.getpid()} (" in told[0]


def test_what_is_finished_is_not_run_again_unless_forced(deepspeed, job):
    played = deepspeed(BOTH_RANKS)
    first = measure_job(job())
    assert measure_job(job()) == first and played.launches == 1
    measure_job(job(), force=True)
    assert played.launches == 2


def test_a_run_that_means_nothing_is_never_started(deepspeed, job):
    played = deepspeed(BOTH_RANKS)
    one = job({"offload.param": "cpu", "checkpointing.reentrant": True})
    record = measure_job(one)
    assert record.status == "unsupported" and played.launches == 0
    assert record.reason.count("; instead: ") == 2
    assert one.folder.read_record() == record


def test_a_folder_that_another_memlab_measures_is_left_alone(deepspeed, job):
    played = deepspeed(BOTH_RANKS)
    with job().folder.lock() as mine:
        assert mine
        with pytest.raises(MemlabError, match=rf"measured by another memlab \(pid {os.getpid()} on "):
            measure_job(job())
    assert played.launches == 0
    assert measure_job(job()).status == "ok"


def test_trouble_with_the_transport_is_tried_once_more(deepspeed, job):
    played = deepspeed("print('EADDRINUSE'); raise SystemExit(1)")
    assert measure_job(job()).status == "infra"
    assert played.launches == 2


def test_the_second_try_may_succeed(deepspeed, job):
    trouble = "if open(notes).read().count('launch') == 1:\n    print('EADDRINUSE'); raise SystemExit(1)\n"
    played = deepspeed(trouble + BOTH_RANKS)
    assert measure_job(job()).status == "ok"
    assert played.launches == 2


TROUBLE = "print('EADDRINUSE'); raise SystemExit(1)"


def test_of_two_tries_the_last_is_told(deepspeed, job):
    deepspeed(TROUBLE)
    told = []
    measure_jobs([job()], CPU, (), LaunchControl(on_record=lambda job, record: told.append(record.status)))
    assert told == ["infra"]


def test_nothing_is_tried_again_once_it_is_told_to_stop(deepspeed, job, monkeypatch):
    played = deepspeed("both(folders[0], status='infra', reason='lost', timing={}); raise SystemExit(1)")
    control, told = LaunchControl(), []
    control.on_record = lambda job, record: told.append(record.status)
    outcome = job_launch.outcome
    monkeypatch.setattr(job_launch, "outcome", lambda *facts: (control.stop.set(), outcome(*facts))[1])
    measure_jobs([job()], CPU, (), control)
    assert (played.launches, told) == (1, ["infra"])


def test_a_failure_is_not_tried_again(deepspeed, job):
    played = deepspeed("write(folders[0], 0, status='failed', reason='odd', timing={}); raise SystemExit(1)")
    record = measure_job(job())
    assert (record.status, record.reason, played.launches) == ("failed", "rank 0: odd", 1)


def test_a_timeout_keeps_what_the_ranks_had(deepspeed, job):
    deepspeed("write(folders[0], 1); time.sleep(60)")
    record = measure_job(job({"measure.timeout_s": 1}))
    assert record.status == "timeout" and record.reason.startswith("the command had not ended after 1 s; the Python")
    assert [rank["rank"] for rank in record.ranks] == [1]


def test_an_interrupt_becomes_a_record(deepspeed, job, monkeypatch):
    deepspeed("time.sleep(60)")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(process.Launch, "wait", interrupt)
    assert measure_job(job()).status == "interrupted"
    assert job().folder.read_record().status == "interrupted"


def interrupting_once(function):
    """Ctrl-C as it is called. It raises once: memlab.system.signals sees to that."""
    struck = []

    def interrupted(*arguments, **named):
        if not struck:
            struck.append(True)
            raise KeyboardInterrupt
        return function(*arguments, **named)

    return interrupted


def commands() -> str:
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return "\n".join(found)


HANGS, FAILS = "time.sleep(60)", "raise SystemExit(1)"


@pytest.mark.parametrize(
    ("module", "name", "code", "status"),
    [
        (job_launch, "sweep_stale_locks", HANGS, "interrupted"),
        (job_launch, "rank_environment", HANGS, "interrupted"),
        (job_launch.GpuPool, "_available", HANGS, "interrupted"),
        (process.deadman, "kill_marked", FAILS, "interrupted"),
        (job_launch, "outcome", FAILS, "failed"),
    ],
)
def test_ctrl_c_becomes_a_record_wherever_it_strikes(deepspeed, job, monkeypatch, tmp_path, module, name, code, status):
    """And no process is left. What an earlier run left in the folder is no result of this one."""
    deepspeed(BOTH_RANKS)
    measure_job(job())
    (job().folder.path / "record.json").unlink()
    deepspeed(code)
    monkeypatch.setattr(module, name, interrupting_once(getattr(module, name)))
    record = measure_job(job())
    assert record.status == status and record.ranks == []
    assert job().folder.read_record() == record
    assert str(tmp_path) not in commands()


def test_one_run_waits_for_another_memlab_on_the_machine_and_says_so(deepspeed, job):
    played, told = deepspeed(BOTH_RANKS), []
    with GpuPool(()).take(0, True, LaunchControl()):
        one = threading.Thread(target=measure_job, args=(job(), False, told.append))
        one.start()
        deadline = time.monotonic() + 10
        while not told and time.monotonic() < deadline:
            time.sleep(0.02)
        assert played.launches == 0
    one.join(20)
    assert played.launches == 1 and len(told) == 1
    assert f"pid {os.getpid()} on {socket.gethostname()}, since " in told[0]


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        (BOTH_RANKS, "ok", "processes [4242] could not be killed and may still hold memory"),
        (
            "raise SystemExit(1)",
            "failed",
            "ended with exit code 1; processes [4242] could not be killed and may still hold",
        ),
    ],
)
def test_what_could_not_be_killed_is_in_the_record(deepspeed, job, monkeypatch, code, status, reason):
    deepspeed(code)
    monkeypatch.setattr(process.deadman, "kill_marked", lambda token, deadman: [4242])
    record = measure_job(job())
    assert record.status == status and reason in record.reason
    assert job().folder.read_record() == record


def test_ranks_that_are_killed_leave_no_shared_memory(deepspeed, job, monkeypatch, tmp_path):
    """Those of other launches stay."""
    monkeypatch.setattr(segments, "FOLDER", tmp_path)
    monkeypatch.setattr(job_launch, "free_port", lambda: 4242)
    ours, others = segments.segment("127.0.0.1", "4242", 1), segments.segment("127.0.0.1", "14242", 1)
    others.touch()
    deepspeed(f"pathlib.Path({str(ours)!r}).touch(); time.sleep(60)")
    assert measure_job(job({"measure.timeout_s": 1})).status == "timeout"
    assert others.exists() and not ours.exists()


@pytest.fixture
def points(job):
    """``points()``: three jobs that differ in length alone."""
    return lambda **changes: [job({"seq_len.tokens": tokens, **changes}) for tokens in (1, 2, 3)]


def measured(jobs, control: LaunchControl | None = None):
    return measure_jobs(jobs, CPU, (), control or LaunchControl())


def test_points_of_one_launch_have_a_record_each(deepspeed, points):
    played, told = deepspeed(), []
    records = measured(points(), LaunchControl(on_record=lambda job, record: told.append(record)))
    assert [record.config.seq_len.tokens for record in records] == [1, 2, 3]
    assert {(record.status, record.isolation) for record in records} == {("ok", "shared")}
    assert [record.before_in_launch for record in records] == [[], [[1, 1]], [[1, 1], [1, 2]]]
    assert [one.folder.read_record() for one in points()] == records == told
    assert played.launches == 1


def test_a_launch_that_ends_early_has_records_of_the_points_it_reached(deepspeed, points):
    deepspeed(acts={"2/1x2": "oom"})
    records = measured(points())
    assert [record.status for record in records] == ["ok", "gpu_oom"]
    assert not (points()[2].folder.path / "record.json").exists()


def test_every_point_has_its_own_time_limit(deepspeed, points):
    deepspeed("for folder in folders:\n    time.sleep(0.7); both(folder)")
    records = measured(points(**{"measure.timeout_s": 2}))
    assert [record.status for record in records] == ["ok", "ok", "ok"]
    assert all(record.timing["total_s"] < 2 for record in records)


def test_a_launch_that_is_told_to_stop_records_where_it_was(deepspeed, points):
    deepspeed(acts={"2/1x2": "hang"})
    control = LaunchControl()
    control.on_record = lambda job, record: control.stop.set()
    assert [record.status for record in measured(points(), control)] == ["ok", "interrupted"]


def test_a_launch_that_has_done_enough_ends_without_blame(deepspeed, points):
    deepspeed(acts={"2/1x2": "hang"})
    told = []
    control = LaunchControl(
        reason_to_end=lambda: "at a limit" if told else None, on_record=lambda job, record: told.append(record.status)
    )
    assert [record.status for record in measured(points(), control)] == ["ok"] == told
    assert not (points()[1].folder.path / "record.json").exists()


def test_a_limit_in_the_middle_of_a_job_ends_it_and_says_so(deepspeed, points):
    deepspeed(acts={"2/1x2": "hang"})
    told = []
    control = LaunchControl(on_record=lambda job, record: told.append(time.monotonic()))
    control.reason_to_end = lambda: "at sweep.max_hours=1" if told and time.monotonic() > told[0] + 0.3 else None
    records = measured(points(), control)
    assert [record.status for record in records] == ["ok", "interrupted"]
    assert records[1].reason.startswith("stopped at sweep.max_hours=1 after ") and records[1].ranks[0]["rank"] == 0
    assert points()[1].folder.read_record() == records[1]
    assert not (points()[2].folder.path / "record.json").exists()


# --- the machine


def test_the_plan_is_for_the_machine_it_runs_on(job):
    record = measure_job(job({"hardware.device": "cuda", "hardware.gpu": "H200"}), machine=Machine(H200S[:1]))
    assert record.status == "unsupported" and "this machine has 1" in record.reason


@pytest.mark.parametrize(("changes", "ids"), [({}, []), ({"hardware.device": "cuda"}, ["1", "2"])])
def test_a_launch_takes_as_many_gpus_as_its_plan_and_none_for_the_cpu(deepspeed, job, monkeypatch, changes, ids):
    deepspeed(BOTH_RANKS)
    taken, command = [], job_launch.command
    monkeypatch.setattr(job_launch, "command", lambda *words: (taken.append(words[2]), command(*words))[1])
    measure_jobs([job(changes)], Machine(H200S), H200S[1:], LaunchControl())
    assert taken == [ids]
