"""A real Slurm on this machine, of one node or several, for as long as a block or a command runs.

``python local_slurm.py COMMAND...`` runs a command with it. Nothing outside its folder is written, and no
accounting is set up. Needs munge and Slurm (Debian: slurm-wlm) and root.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from memlab.launch.launcher_line import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
ADMIN_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

CONFIG = """\
ClusterName=memlab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm(folder: Path, nodes: int = 1) -> Iterator[dict[str, str]]:
    """The variables with which Slurm's commands find it."""
    names = [f"node{index}" for index in range(1, nodes + 1)]
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    _configure(folder, names)
    key, socket = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    files = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")]
    with contextlib.ExitStack() as stack:
        start = lambda *words: stack.enter_context(_daemon(words, environment, folder))  # noqa: E731
        # --force: it may run as root, in a folder that only root may read
        start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}", *files)
        start("slurmctld", "-D")
        for name in names:
            start("slurmd", "-D", "-N", name)
        _wait_until_idle(environment, nodes)
        try:
            yield {"SLURM_CONF": environment["SLURM_CONF"]}
        finally:
            subprocess.run(["scancel", "--full", "--signal=KILL", "--user=root"], env=environment, check=False)


def _configure(folder: Path, names: Sequence[str]) -> None:
    (folder / "state").mkdir()
    lines = [
        f"NodeName={name} NodeAddr=127.0.0.1 NodeHostname=localhost Port={free_port()} CPUs={os.cpu_count()}"
        for name in names
    ]
    text = CONFIG.format(folder=folder, controller_port=free_port(), nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(text)


@contextlib.contextmanager
def _daemon(words: Sequence[str], environment: dict[str, str], folder: Path) -> Iterator[None]:
    program = shutil.which(words[0], path=ADMIN_PATH)
    with (folder / "daemons.log").open("a") as log:
        process = subprocess.Popen([program, *words[1:]], env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_until_idle(environment: dict[str, str], nodes: int, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while True:
        command = ["sinfo", "--noheader", "--Node", "--format=%T"]
        states = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.split()
        if states == ["idle"] * nodes:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"Slurm's nodes are {states} after {timeout} s; see its logs")
        time.sleep(0.2)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm(Path(folder)) as variables:
        return subprocess.run(sys.argv[1:], env={**os.environ, **variables}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
