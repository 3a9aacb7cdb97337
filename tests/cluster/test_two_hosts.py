"""One run on two hosts: DeepSpeed's runner, pdsh and ssh, one CPU rank on each of two loopback addresses."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from loopback import Hosts
from support import LAUNCH, SHORT, wait_until

pytestmark = pytest.mark.cluster


def start(hosts: Hosts, folder: Path, *words: str, fault: str = "", apart: bool = False) -> subprocess.Popen:
    """``apart``: in a process namespace of its own, from where memlab can neither see nor signal the ranks."""
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if apart else []
    command = [*namespace, *LAUNCH, *SHORT, "zero_stage=zero3", *hosts.words(), f"hydra.run.dir={folder}/run", *words]
    environment = {**hosts.environment, "MEMLAB_TEST_FAULT": fault}
    with (folder / "output").open("w") as output:
        return subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT)


def record(folder: Path) -> dict:
    return json.loads((folder / "run" / "record.json").read_text())


def ranks(hosts: Hosts) -> dict[int, dict[str, str]]:
    """Rank process id -> its environment."""
    found = {}
    for pid in hosts.alive():
        variables = dict(
            word.split("=", 1) for word in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in word
        )
        if "RANK" in variables:
            found[pid] = variables
    return found


def test_two_hosts_are_one_run(hosts, tmp_path):
    launch = start(hosts, tmp_path, "hardware.usd_per_hour=3.6")
    assert launch.wait(240) == 0, (tmp_path / "output").read_text()
    found = record(tmp_path)
    assert (found["status"], [rank["rank"] for rank in found["ranks"]]) == ("ok", [0, 1])
    summary = found["summary"]
    assert summary["samples_per_second"] == pytest.approx(2 / summary["step_seconds"])
    assert summary["usd"] == pytest.approx(2 * 3.6 / 3600 * found["timing"]["total_s"])
    assert "-2nodes-" in found["run_id"]
    assert hosts.alive() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_on_other_hosts_end_with_memlab(hosts, tmp_path, number, monkeypatch):
    if subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False).returncode:
        pytest.skip("process namespaces are not allowed here")
    hosts.environment["HF_TOKEN"] = "hf_" + "s3cr3t" * 6
    launch = start(hosts, tmp_path, fault="hang:0:1", apart=True)
    wait_until((tmp_path / "struck").exists, 240, (tmp_path / "output").read_text)
    started = ranks(hosts)
    check_variables(list(started.values()), hosts.environment["HF_TOKEN"])
    (memlab,) = map(int, Path(f"/proc/{launch.pid}/task/{launch.pid}/children").read_text().split())
    os.kill(memlab, number)
    launch.wait(30)
    wait_until(lambda: hosts.alive() == [], 15, lambda: str(ranks(hosts)))
    if number == signal.SIGTERM:
        assert record(tmp_path)["status"] == "interrupted"


def check_variables(environments: list[dict[str, str]], secret: str) -> None:
    """What the plan decides has reached both ranks, and no secret."""
    assert sorted(one["RANK"] for one in environments) == ["0", "1"]
    for one in environments:
        assert "SSH_CONNECTION" in one  # came through sshd
        assert one["HF_HUB_OFFLINE"] == one["PYTHONSAFEPATH"] == "1"
        assert {"MEMLAB_LAUNCH", "MEMLAB_STARTED_AT", "TORCH_EXTENSIONS_DIR", "OMP_NUM_THREADS"} < one.keys()
        assert secret not in one.values()


def test_a_rank_killed_on_the_other_host(hosts, tmp_path):
    launch = start(hosts, tmp_path, fault="kill:1:1")
    assert launch.wait(240) == 6, (tmp_path / "output").read_text()
    assert record(tmp_path)["status"] == "failed"
    assert hosts.alive() == []


def test_no_hostfile_is_said_before_anything_starts(hosts, tmp_path):
    launch = start(hosts, tmp_path, "hardware.hostfile=null", "hardware.launcher=null")
    assert launch.wait(60) == 8, (tmp_path / "output").read_text()
    reason = record(tmp_path)["reason"]
    assert "hardware.launcher=pdsh" in reason and "hardware.hostfile=" in reason
