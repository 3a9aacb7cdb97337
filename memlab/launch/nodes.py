"""Launches on several nodes: the arguments of DeepSpeed's runner, and the environment of ranks on other hosts.

The run folder, memlab and the Python environment must have the same path on every node (a shared file system).
Launches side by side get disjoint GPUs, also across memlab processes on one machine.
"""

import contextlib
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from memlab.core.plan import Plan
from memlab.files.redaction import is_secret_name
from memlab.launch.launch_control import LaunchControl
from memlab.launch.outcome import tail
from memlab.system.environment import cache_dir, own_variables
from memlab.system.hostfile import read_hostfile
from memlab.system.locks import hold, holder
from memlab.system.machine import Gpu, Machine

POLL_S = 0.5


class GpuPool:
    """The GPUs of this machine. On a machine without GPUs, one launch runs at a time."""

    def __init__(self, gpus: tuple[Gpu, ...]):
        self._all = gpus
        self._free = list(gpus)
        self._changed = threading.Condition()
        self._running = 0
        self._is_alone = False  # whether the running launch must have nothing beside it

    @contextlib.contextmanager
    def take(self, count: int, alone: bool, control: LaunchControl) -> Iterator[tuple[Gpu, ...] | None]:
        """Hold ``count`` GPUs while the block runs; with ``alone``, without any other launch beside it.

        Yields the GPUs, or ``None`` once the launch must end. ``control.on_wait`` is called with a message when another
        memlab process on this machine holds a GPU or core.
        """
        with self._changed:
            while not (given_up := control.must_end()) and not self._available(count, alone):
                self._changed.wait(POLL_S)
            if not given_up:
                taken = tuple(self._free[:count])
                self._free = self._free[count:]
                self._running += 1
                self._is_alone = alone
        if given_up:
            yield None
            return
        try:
            with _machine_wide(taken, alone, control) as held:
                yield taken if held else None
        finally:
            with self._changed:
                self._free = sorted({*self._free, *taken}, key=self._all.index)
                self._running -= 1
                self._is_alone = False
                self._changed.notify_all()

    def _available(self, count: int, alone: bool) -> bool:
        needs_all = alone or self._is_alone or not self._all
        return self._running == 0 if needs_all else len(self._free) >= count


@contextlib.contextmanager
def _machine_wide(gpus: Sequence[Gpu], alone: bool, control: LaunchControl) -> Iterator[bool]:
    """Lock GPUs and cores against other memlab processes: two measurements on one GPU would change each other.

    Launches share the locks of their cores; a launch with ``alone`` locks its cores exclusively. Yields false once the
    launch must end.
    """
    wanted = {f"gpu-{gpu.uuid or gpu.id}": False for gpu in gpus}
    wanted |= {f"core-{number}": not alone for number in os.sched_getaffinity(0)}
    folder = cache_dir() / "locks" / socket.gethostname()  # several machines may share the cache's file system
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        for name, shared in sorted(wanted.items()):  # the same order in all processes, to avoid a deadlock
            if not _wait_for(folder / f"{name}.lock", shared, held, control):
                yield False
                return
        yield True


def _wait_for(path: Path, shared: bool, held: contextlib.ExitStack, control: LaunchControl) -> bool:
    told = None
    while not control.must_end():
        with contextlib.ExitStack() as attempt:
            if attempt.enter_context(hold(path, shared)):
                held.enter_context(attempt.pop_all())
                return True
        if told != (told := holder(path)):
            control.on_wait(
                f"waiting for another memlab on this machine ({told}): side by side they would measure each other; of "
                "several that wait, any may be next"
            )
        time.sleep(POLL_S)
    return False


SENT_PREFIXES = ("MEMLAB_", "HF_", "NCCL_", "GLOO_")
"""Prefixes of shell variables that memlab also sends to the other hosts: caches and network interfaces."""

WORKER_FILE = Path(__file__).parents[1] / "training" / "__main__.py"


def node_words(plan: Plan) -> list[str]:
    """Return the runner's arguments that select the hosts and launcher of the ranks."""
    hardware = plan.config.hardware
    # Where there are several nodes, the hostfile and the launcher are given.
    hostfile, launcher, gpus = map(str, (hardware.hostfile, hardware.launcher, hardware.gpus))
    # Without --no_ssh_check DeepSpeed would test ssh, without the ssh options that pdsh receives.
    words = ["--hostfile", str(Path(hostfile).resolve()), "--launcher", launcher, "--no_ssh_check"]
    words += ["--master_addr", master_address(plan)]
    nodes = ["--num_nodes", str(hardware.nodes)]
    if launcher == "pdsh":
        return [*words, *nodes, "--num_gpus", gpus]
    if launcher == "slurm":
        on_gpus = ["--num_gpus", gpus] if hardware.device == "cuda" else []
        # A failed rank ends the others, as DeepSpeed's own launcher does on one node.
        return [*words, *nodes, *on_gpus, f"--launcher_args=--ntasks-per-node={gpus} --kill-on-bad-exit=1"]
    # By default mpirun gives each rank one core, which would starve an offloaded optimizer.
    return [*words, "--launcher_args=--bind-to none"]


def worker_words(plan: Plan) -> list[str]:
    """Return the runner's arguments that name the rank's program. DeepSpeed's Slurm launcher starts only files."""
    by_file = plan.is_multi_node and plan.config.hardware.launcher == "slurm"
    return [str(WORKER_FILE)] if by_file else ["--module", "memlab.training"]


def master_address(plan: Plan) -> str:
    """Return the host of rank 0, where the ranks meet: the first host of the hostfile."""
    return next(iter(read_hostfile(str(plan.config.hardware.hostfile))))


def takes_sigterm(plan: Plan) -> bool:
    """Whether the processes of a launch may be sent SIGTERM.

    With pdsh they may not: on SIGTERM, DeepSpeed's runner ends every DeepSpeed launch of this user on all hosts with
    ``pkill -f``. SIGKILL avoids that, and the ranks end with their connection (memlab.training.lifeline).
    """
    return not (plan.is_multi_node and plan.config.hardware.launcher == "pdsh")


@contextlib.contextmanager
def for_nodes(plan: Plan, machine: Machine, environment: dict[str, str], port: int) -> Iterator[dict[str, str]]:
    """Extend the runner's ``environment`` so that the ranks on every node get their variables while the block runs."""
    if not plan.is_multi_node:
        yield environment
        return
    environment = environment | _meeting_point(plan, port)
    if plan.config.hardware.launcher == "slurm":  # srun passes on the whole environment
        yield environment
        return
    sent = {name for name in environment if name.startswith(SENT_PREFIXES) and not is_secret_name(name)}
    names = {*own_variables(plan, machine), *_meeting_point(plan, port), *sent}
    with tempfile.NamedTemporaryFile("w", prefix="memlab-", suffix=".env") as file:  # mode 0600
        file.writelines(f"{name}={_in_double_quotes(environment[name])}\n" for name in sorted(names))
        file.flush()
        yield {**environment, "DS_ENV_FILE": file.name}


def _meeting_point(plan: Plan, port: int) -> dict[str, str]:
    if plan.config.hardware.launcher == "pdsh":  # DeepSpeed's launch.py sets the variables below on each node
        return {"MEMLAB_LIFELINE": "stdin"}
    return {
        "MASTER_ADDR": master_address(plan),
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_SIZE": str(plan.ranks_per_node),
    }


def _in_double_quotes(value: str) -> str:
    """Escape a value for double quotes: DeepSpeed adds the quotes for the remote shell, but escapes nothing."""
    return re.sub(r'([\\"$`])', r"\\\1", value)


def failed_node(log: Path) -> int | None:
    """Return the exit code of a failed node from pdsh's output; pdsh itself keeps waiting for the other nodes."""
    match = re.search(r"ssh exited with exit code (\d+)", tail(log, 200))
    return int(match[1]) if match else None
