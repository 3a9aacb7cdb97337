"""Clusters on one machine. Each is set up for one test and leaves nothing behind."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import local_slurm
import local_sshd
import pytest
from hosts import Hosts, cleaned
from support import need

REMOTE = {"pdsh": ["pdsh"], "openmpi": ["mpirun", "ompi_info"]}

MPI_ON_LOOPBACK = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_oob_tcp_if_include": "lo",
}


@pytest.fixture
def hosts_by(tmp_path: Path) -> Iterator[Callable[[str], Hosts]]:
    """``hosts_by(launcher)``: two hosts on which this launcher of DeepSpeed starts ranks."""
    with ExitStack() as stack:

        def set_up(launcher: str) -> Hosts:
            if os.geteuid() != 0:
                pytest.skip("sshd and Slurm are set up by root")
            cluster = tmp_path / "cluster"
            cluster.mkdir()
            if launcher == "slurm":
                need(*local_slurm.PROGRAMS)
                variables = stack.enter_context(local_slurm.slurm(cluster, nodes=2))
            else:
                need(*local_sshd.PROGRAMS, *REMOTE[launcher])
                variables = stack.enter_context(local_sshd.sshd(cluster)) | MPI_ON_LOOPBACK
            return stack.enter_context(cleaned(Hosts(tmp_path, launcher, variables)))

        yield set_up
