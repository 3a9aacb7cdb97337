"""One run from plan to record. A short script takes the place of deepspeed and its ranks; the rest is real."""

import json
import sys

import pytest

from memlab import machine
from memlab.launch import process, run
from memlab.launch.environment import fingerprint
from memlab.launch.run import finished, run_launch, run_one
from memlab.machine import Gpu, Machine
from memlab.plan import make_plan
from memlab.record import STATUSES, RunFolder

CPU = Machine()


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "POLL_S", 0.02)
    monkeypatch.setattr(process, "STACKS_S", 0.0)
    monkeypatch.setattr(run, "detect", lambda: CPU)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def plan(config):
    return lambda changes=None: make_plan(config(changes), {"model": "tiny"})


@pytest.fixture
def folder(tmp_path):
    def make(name: str = "run") -> RunFolder:
        (tmp_path / name).mkdir(exist_ok=True)
        return RunFolder(tmp_path / name)

    return make


@pytest.fixture
def deepspeed(monkeypatch, tmp_path, rank):
    """``deepspeed(code)``: what is started in place of it. ``write(folder, rank, **changes)`` writes a rank's file."""
    starts = tmp_path / "starts"
    begin = (
        "import json, os, pathlib, sys, time\n"
        f"rank = json.loads({json.dumps(rank(0))!r})\n"
        f"open({str(starts)!r}, 'a').write('x')\n"
        "def write(folder, number, **changes):\n"
        "    path = pathlib.Path(folder, f'rank{number}.json')\n"
        "    path.with_suffix('.new').write_text(json.dumps({**rank, 'rank': number, **changes}))\n"
        "    path.with_suffix('.new').rename(path)\n"
        "folders = sys.argv[1:]\n"
    )

    def replace(code: str):
        def command(plan, folders, gpu_ids, port):
            return [sys.executable, "-c", begin + code, *map(str, folders)]

        monkeypatch.setattr(run, "command", command)
        return lambda: len(starts.read_text()) if starts.exists() else 0

    return replace


BOTH_RANKS = "write(folders[0], 0); write(folders[0], 1)"


def test_a_run_becomes_a_record(deepspeed, plan, folder):
    deepspeed(BOTH_RANKS)
    record = run_one(plan(), folder())
    assert (record.status, record.reason, record.source, record.isolation) == ("ok", None, "measured", "fresh")
    assert folder().read_record() == record
    assert [rank["rank"] for rank in record.ranks] == [0, 1]
    assert record.steps["seconds"] == [0.5, 0.4, 0.6] and record.steps["warmup_seconds"] == [2.0, 0.5]
    assert record.timing["train_s"] == 2.0 and 0 < record.timing["total_s"] < 60
    assert record.environment["cuda"] == "13.0" and "runtime" not in record.ranks[0]
    assert record.fingerprint == fingerprint(plan(), CPU)


def test_what_is_finished_is_not_run_again_unless_forced(deepspeed, plan, folder):
    starts = deepspeed(BOTH_RANKS)
    first = run_one(plan(), folder())
    assert run_one(plan(), folder()) == first and starts() == 1
    run_one(plan({"force": True}), folder(), force=True)
    assert starts() == 2


@pytest.mark.parametrize("status", STATUSES)
def test_only_what_would_come_out_the_same_counts_as_finished(folder, record, status):
    folder().finish(record(status=status))
    is_final = status in ("ok", "gpu_oom", "host_oom", "unsupported")
    assert (finished(folder(), record().fingerprint) is not None) is is_final
    assert finished(folder(), "of another machine") is None


def test_a_run_that_means_nothing_is_never_started(deepspeed, plan, folder):
    starts = deepspeed(BOTH_RANKS)
    record = run_one(plan({"offload.param": "cpu", "checkpointing.reentrant": True}), folder())
    assert record.status == "unsupported" and starts() == 0
    assert record.reason.count("; instead: ") == 2
    assert folder().read_record() == record


def test_trouble_with_the_transport_is_tried_once_more(deepspeed, plan, folder):
    starts = deepspeed("print('EADDRINUSE'); raise SystemExit(1)")
    assert run_one(plan(), folder()).status == "infra"
    assert starts() == 2


def test_a_failure_is_not_tried_again(deepspeed, plan, folder):
    starts = deepspeed("write(folders[0], 0, status='failed', reason='odd', timing={}); raise SystemExit(1)")
    record = run_one(plan(), folder())
    assert (record.status, record.reason, starts()) == ("failed", "rank 0: odd", 1)


def test_a_timeout_keeps_what_the_ranks_had(deepspeed, plan, folder):
    deepspeed("write(folders[0], 1); time.sleep(60)")
    record = run_one(plan({"measure.timeout_s": 1}), folder())
    assert record.status == "timeout" and record.reason.startswith("ranks [0] had no result after")
    assert [rank["rank"] for rank in record.ranks] == [1]


def test_an_interrupt_becomes_a_record(deepspeed, plan, folder, monkeypatch):
    deepspeed("time.sleep(60)")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(process.Launch, "wait", interrupt)
    assert run_one(plan(), folder()).status == "interrupted"
    assert folder().read_record().status == "interrupted"


POINTS = [{"seq_len.tokens": tokens} for tokens in (1, 2, 3)]


def test_points_of_one_launch_have_a_record_each(deepspeed, plan, folder):
    starts = deepspeed("for folder in folders:\n    write(folder, 0); write(folder, 1)")
    records = run_launch([plan(point) for point in POINTS], [folder(name) for name in "abc"], CPU)
    assert [record.config["seq_len"]["tokens"] for record in records] == [1, 2, 3]
    assert {(record.status, record.isolation) for record in records} == {("ok", "shared")}
    assert [folder(name).read_record() for name in "abc"] == records
    assert starts() == 1


def test_a_launch_that_ends_early_has_records_of_the_points_it_reached(deepspeed, plan, folder):
    oom = "status='gpu_oom', reason='no memory', oom={'phase': 'backward', 'step': 0}"
    deepspeed(f"write(folders[0], 0); write(folders[0], 1); write(folders[1], 0, {oom}); raise SystemExit(1)")
    records = run_launch([plan(point) for point in POINTS], [folder(name) for name in "abc"], CPU)
    assert [record.status for record in records] == ["ok", "gpu_oom"]
    assert not (folder("c").path / "record.json").exists()


def test_every_point_has_its_own_time_limit(deepspeed, plan, folder):
    deepspeed("for folder in folders:\n    time.sleep(0.9); write(folder, 0); write(folder, 1)")
    plans = [plan({**point, "measure.timeout_s": 2}) for point in POINTS]
    records = run_launch(plans, [folder(name) for name in "abc"], CPU)
    assert [record.status for record in records] == ["ok", "ok", "ok"]
    assert all(record.timing["total_s"] < 2 for record in records)


def test_the_plan_is_for_the_machine_it_runs_on(plan, folder, monkeypatch):
    one = Machine((Gpu("0", "NVIDIA H200", machine.GIB, (9, 0)),))
    monkeypatch.setattr(run, "detect", lambda: one)
    record = run_one(plan({"hardware.device": "cuda", "hardware.gpu": "H200"}), folder())
    assert record.status == "unsupported" and "this machine has 1" in record.reason
