"""A command of the user's own on two hosts, started by DeepSpeed's runner, measured as it is."""

from pathlib import Path

import pytest
from hosts import Hosts
from support import wait_until

pytestmark = pytest.mark.cluster

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
    path = f"{hosts.folder}/run/.attach".encode()
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if path in environment_of(process)]


def environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
