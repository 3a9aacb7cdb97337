"""Two hosts on one machine, and runs of memlab on them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import FAULTS, LAUNCH, ROOT, SHORT

from memlab.system.deadman import marked_by

APART = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@" & wait $!; sleep 8', "sh"]
"""Runs a command in a process namespace of its own, which lives on for a moment after it."""

RANKS = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}
"""Variables that the processes of ranks are started with, one of them by each launcher."""

MARK = "MEMLAB_TEST_RUN"  # every process that a test starts carries it


@dataclass
class Hosts:
    """How memlab reaches two hosts, 127.0.0.1 and 127.0.0.2, and what it has started on them."""

    folder: Path
    launcher: str
    variables: dict[str, str] = field(default_factory=dict)

    def start(self, *words: str, fault: str = "", apart: bool = False) -> subprocess.Popen:
        """Start memlab; ``apart``: where it can neither see nor signal the ranks, as if they were on other machines."""
        if apart and subprocess.run([*APART[:-4], "true"], check=False).returncode:
            pytest.skip("process namespaces are not allowed here")
        where = ["hardware.nodes=2", f"hardware.hostfile={self.hostfile}", f"hardware.launcher={self.launcher}"]
        command = [*LAUNCH, *SHORT, "zero_stage=zero3", *where, f"hydra.run.dir={self.folder}/run", *words]
        test = {"MEMLAB_TEST_FAULT": fault, "MEMLAB_TEST_FOLDER": str(self.folder), "PYTHONPATH": str(FAULTS)}
        return self._start([*APART, *command] if apart else command, test)

    def measure(self, options: Sequence[str], *script: str) -> subprocess.Popen:
        """Start ``memlab measure`` around DeepSpeed's runner, which starts a script on both hosts."""
        where = ["--hostfile", str(self.hostfile), "--launcher", self.launcher, "--no_ssh_check"]
        where += ["--master_addr", "127.0.0.1", "--no_local_rank"]
        where += ["--num_nodes", "2", "--launcher_args=--ntasks-per-node=1"] * (self.launcher == "slurm")
        runner = [str(Path(sys.executable).parent / "deepspeed"), *where, *script]
        measure = [sys.executable, "-m", "memlab", "measure", "--output", str(self.folder / "run"), *options]
        command = [*measure, "--", *runner]
        return self._start(command, {"PYTHONPATH": str(ROOT)})

    @property
    def hostfile(self) -> Path:
        file = self.folder / "hosts"
        file.write_text("127.0.0.1 slots=1\n127.0.0.2 slots=1\n")
        return file

    def _start(self, command: Sequence[str], variables: dict[str, str]) -> subprocess.Popen:
        environment = {**os.environ, **self.variables, **variables, MARK: str(self.folder)}
        with (self.folder / "output").open("w") as output:
            return subprocess.Popen(command, env=environment, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    @property
    def record(self) -> dict:
        return json.loads((self.folder / "run" / "record.json").read_text())

    def alive(self) -> list[int]:
        return list(marked_by(MARK, str(self.folder)))

    def ranks(self) -> list[dict[str, str]]:
        """The environments of the ranks that are alive."""
        environments = map(environment_of, self.alive())
        return [one for one in environments if RANKS & one.keys() and "MEMLAB_LAUNCH" in one]


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with; nothing, if it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in text.split("\0") if "=" in word)


@contextmanager
def cleaned(hosts: Hosts) -> Iterator[Hosts]:
    yield hosts
    for pid in hosts.alive():
        os.kill(pid, 9)
