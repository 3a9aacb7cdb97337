"""Two hosts on one machine: loopback addresses with an sshd, keys of its own and a hostfile."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import FAULTS, need, wait_until

from memlab.launch.command import free_port
from memlab.launch.deadman import marked_by


@dataclass
class Hosts:
    """Two hosts that ssh and pdsh reach, and processes that were started on them."""

    hostfile: Path
    environment: dict[str, str]
    mark: str

    def words(self, launcher: str = "pdsh") -> list[str]:
        where = [f"hardware.hostfile={self.hostfile}", f"hardware.launcher={launcher}"]
        return ["hardware.nodes=2", *where]

    def alive(self) -> list[int]:
        return list(marked_by("MEMLAB_TEST_RUN", self.mark))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    need("pdsh", "sshd", "ssh-keygen")
    if os.geteuid() != 0:
        pytest.skip("sshd lets others than root log in only as root")
    port = free_port()
    options = _ssh_keys(tmp_path)
    server = _start_sshd(tmp_path, port)
    hostfile = tmp_path / "hosts"
    hostfile.write_text("127.0.0.1 slots=1\n127.0.0.2 slots=1\n")
    environment = {
        **os.environ,
        "PDSH_SSH_ARGS_APPEND": f"-p {port} {options}",
        "PYTHONPATH": str(FAULTS),
        "MEMLAB_TEST_FOLDER": str(tmp_path),
        "MEMLAB_TEST_RUN": str(tmp_path),
    }
    found = Hosts(hostfile, environment, str(tmp_path))
    yield found
    for pid in found.alive():
        os.kill(pid, 9)
    server.terminate()
    server.wait()


def _ssh_keys(folder: Path) -> str:
    """Keys for host and user; returns the options that make ssh use them."""
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    quiet = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    return f"-i {folder / 'user_key'} {quiet}"


def _start_sshd(folder: Path, port: int) -> subprocess.Popen:
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd's unprivileged half lives
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\nPasswordAuthentication no\nUsePAM no\nStrictModes no\n"
    )
    log = folder / "sshd.log"
    sshd = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/bin")
    server = subprocess.Popen([sshd, "-D", "-f", str(config), "-E", str(log)])
    wait_until(lambda: log.exists() and log.read_text().count("Server listening") == 2, 10)
    return server
