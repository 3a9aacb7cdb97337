"""One run on two hosts, a CPU rank on each, through DeepSpeed's runner and what it starts ranks with."""

import os
import signal
from pathlib import Path

import pytest
from leftovers import segments_left, segments_left_since
from support import wait_until

pytestmark = pytest.mark.cluster

STARTED = 240  # seconds


@pytest.mark.long(25)
@pytest.mark.parametrize("launcher", ["pdsh", "slurm", "openmpi"])
def test_two_hosts_are_one_run(hosts_by, launcher):
    hosts = hosts_by(launcher)
    before = segments_left()
    memlab = hosts.start("hardware.usd_per_hour=3.6")
    assert memlab.wait(STARTED) == 0, hosts.output
    record = hosts.record
    assert (record["status"], [rank["rank"] for rank in record["ranks"]]) == ("ok", [0, 1])
    summary = record["summary"]
    assert summary["samples_per_second"] == pytest.approx(2 / summary["step_seconds"])
    assert summary["usd"] == pytest.approx(2 * 3.6 / 3600 * record["timing"]["total_s"])
    assert "-2nodes-" in record["run_id"]
    assert hosts.alive() == []
    assert not segments_left_since(before), "the ranks left shared memory behind"


@pytest.mark.long(25)
@pytest.mark.parametrize(
    ("launcher", "who", "number"),
    [
        ("pdsh", "memlab", signal.SIGTERM),
        ("pdsh", "memlab", signal.SIGKILL),
        ("pdsh", "its machine", signal.SIGKILL),
        ("slurm", "memlab", signal.SIGTERM),
        ("slurm", "memlab", signal.SIGKILL),
        ("openmpi", "memlab", signal.SIGTERM),
        ("openmpi", "memlab", signal.SIGKILL),
        ("openmpi", "its machine", signal.SIGKILL),
    ],
)
def test_ranks_on_other_hosts_end_with(hosts_by, launcher, who, number):
    hosts = hosts_by(launcher)
    secret = hosts.variables["HF_TOKEN"] = "hf_" + "s3cr3t" * 6
    machine = hosts.start(fault="hang:0:1", apart=True)
    wait_until((hosts.folder / "struck").exists, STARTED, lambda: hosts.output)
    ranks = hosts.ranks()
    assert len(ranks) >= 2
    assert secret not in {value for rank in ranks for value in rank.values()}
    shell = only_child(machine.pid)
    os.kill(shell if who == "its machine" else only_child(shell), number)
    wait_until(lambda: hosts.ranks() == [], 15, hosts.ranks)
    machine.wait(30)
    wait_until(lambda: hosts.alive() == [], 10, hosts.alive)
    if number == signal.SIGTERM:
        assert hosts.record["status"] == "interrupted"


def only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.mark.long(25)
def test_pdsh_brings_the_plan_s_variables_through_ssh(hosts_by):
    hosts = hosts_by("pdsh")
    hosts.start(fault="hang:0:1")
    wait_until((hosts.folder / "struck").exists, STARTED, lambda: hosts.output)
    ranks = [rank for rank in hosts.ranks() if "SSH_CONNECTION" in rank]
    assert sorted(rank["RANK"] for rank in ranks) == ["0", "1"]
    for rank in ranks:
        assert rank["HF_HUB_OFFLINE"] == rank["PYTHONSAFEPATH"] == "1"
        assert {"MEMLAB_LAUNCH", "MEMLAB_STARTED_AT", "TORCH_EXTENSIONS_DIR", "OMP_NUM_THREADS"} < rank.keys()
        assert "DS_ENV_FILE" not in rank


@pytest.mark.long(25)
def test_a_rank_killed_on_the_other_host(hosts_by):
    hosts = hosts_by("pdsh")
    assert hosts.start(fault="kill:1:1").wait(STARTED) == 6, hosts.output
    assert hosts.record["status"] == "failed"
    assert hosts.alive() == []


def test_no_hostfile_is_said_before_anything_starts(hosts_by):
    hosts = hosts_by("pdsh")
    assert hosts.start("hardware.hostfile=null", "hardware.launcher=null").wait(60) == 8, hosts.output
    reason = hosts.record["reason"]
    assert "hardware.launcher=pdsh" in reason and "hardware.hostfile=" in reason
