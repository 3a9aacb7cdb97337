"""One run on two hosts, a CPU rank on each, through DeepSpeed's runner and what it starts ranks with: memlab's own
training, and a command of the user's own, measured as it is."""

import os
import signal
from pathlib import Path

import pytest
from hosts import Hosts, environment_of
from leftovers import segments_left, segments_left_since
from support import wait_until

pytestmark = pytest.mark.cluster

STARTED = 240  # seconds

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

for name, others in {  # as scripts read them that mpirun or srun starts
    "RANK": ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
}.items():
    os.environ[name] = next(os.environ[each] for each in (name, *others) if each in os.environ)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29541")
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(5):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[1:] == ["hang"]:
    time.sleep(300)
dist.destroy_process_group()
"""


@pytest.mark.long(25)
@pytest.mark.parametrize("launcher", ["pdsh", "slurm", "openmpi"])
def test_two_hosts_are_one_run(hosts_by, launcher):
    hosts = hosts_by(launcher)
    before = segments_left()
    memlab = hosts.start("hardware.usd_per_gpu_hour=3.6")
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
        ("slurm", "memlab", signal.SIGKILL),
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
    if launcher == "pdsh":
        plan_s_variables_came_through_ssh(ranks)
    shell = only_child(machine.pid)
    os.kill(shell if who == "its machine" else only_child(shell), number)
    wait_until(lambda: hosts.ranks() == [], 15, hosts.ranks)
    machine.wait(30)
    wait_until(lambda: hosts.alive() == [], 10, hosts.alive)
    if number == signal.SIGTERM:
        assert hosts.record["status"] == "interrupted"


def plan_s_variables_came_through_ssh(ranks: list[dict[str, str]]) -> None:
    ranks = [rank for rank in ranks if "SSH_CONNECTION" in rank]
    assert sorted(rank["RANK"] for rank in ranks) == ["0", "1"]
    for rank in ranks:
        assert rank["HF_HUB_OFFLINE"] == rank["PYTHONSAFEPATH"] == "1"
        assert {"MEMLAB_LAUNCH", "MEMLAB_STARTED_AT", "TORCH_EXTENSIONS_DIR", "OMP_NUM_THREADS"} < rank.keys()
        assert "DS_ENV_FILE" not in rank


def only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


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


@pytest.mark.long(20)
@pytest.mark.parametrize("launcher", ["pdsh", "slurm", "openmpi"])
def test_a_command_on_two_hosts_is_one_run(hosts_by, launcher):
    hosts = hosts_by(launcher)
    (hosts.folder / "train.py").write_text(SCRIPT)
    assert hosts.measure([], "train.py").wait(240) == 0, hosts.output
    record = hosts.record
    assert (record["status"], [rank["rank"] for rank in record["ranks"]]) == ("ok", [0, 1]), hosts.output
    for rank in record["ranks"]:
        attached = rank["attached"]
        assert (attached["ended"], attached["steps"], attached["world_size"]) == ("finished", 5, 2)
        assert attached["meter_errors"] == []
    assert len(record["steps"]["rows"]) == 5
    assert (record["config"]["hardware"]["nodes"], record["config"]["hardware"]["gpus"]) == (2, 1)
    assert ranks_of(hosts) == []


@pytest.mark.long(40)
def test_no_rank_outlives_a_timeout(hosts_by):
    hosts = hosts_by("pdsh")
    (hosts.folder / "train.py").write_text(SCRIPT)
    assert hosts.measure(["--timeout", "30"], "train.py", "hang").wait(240) == 5, hosts.output
    record = hosts.record
    assert record["status"] == "timeout" and "last seen in step 6" in record["reason"]
    assert [rank["attached"]["steps"] for rank in record["ranks"]] == [5, 5]
    wait_until(lambda: ranks_of(hosts) == [], 10, lambda: ranks_of(hosts))


def ranks_of(hosts: Hosts) -> list[int]:
    """The processes on both hosts that got the bootstrap. ssh brings no other mark to them."""
    bootstrap = f"{hosts.folder}/run/.attach"
    processes = [int(process.name) for process in Path("/proc").glob("[0-9]*")]
    return [pid for pid in processes if bootstrap in " ".join(environment_of(pid).values())]
