"""Several nodes: how DeepSpeed's runner is told of them, and how what the ranks need reaches the other hosts.

The run folder, memlab and the Python environment are at the same path on every node (a shared file system).
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from memlab.hostfile import read_hostfile
from memlab.launch.environment import own_variables
from memlab.launch.outcome import tail
from memlab.machine import Machine
from memlab.plan import Plan
from memlab.redaction import is_secret_name

SENT_PREFIXES = ("MEMLAB_", "HF_", "NCCL_", "GLOO_")
"""Variables of the shell that go to the other hosts beside those of the plan: caches and network interfaces."""

WORKER_FILE = Path(__file__).parents[1] / "worker" / "__main__.py"


def node_words(plan: Plan) -> list[str]:
    """The runner's arguments that say where the ranks are started."""
    hardware = plan.config["hardware"]
    launcher, gpus = hardware["launcher"], str(hardware["gpus"])
    # Without --no_ssh_check DeepSpeed would call ssh, and with none of the options that pdsh is given.
    words = ["--hostfile", str(Path(hardware["hostfile"]).resolve()), "--launcher", launcher, "--no_ssh_check"]
    words += ["--master_addr", master_address(plan)]
    nodes = ["--num_nodes", str(hardware["nodes"])]
    if launcher == "pdsh":
        return [*words, *nodes, "--num_gpus", gpus]
    if launcher == "slurm":
        on_gpus = ["--num_gpus", gpus] if hardware["device"] == "cuda" else []
        # A failed rank ends the others, as DeepSpeed's own launcher does on one node.
        return [*words, *nodes, *on_gpus, f"--launcher_args=--ntasks-per-node={gpus} --kill-on-bad-exit=1"]
    # By default mpirun gives each rank one core, which would starve an offloaded optimizer.
    return [*words, "--launcher_args=--bind-to none"]


def worker_words(plan: Plan) -> list[str]:
    """What a rank runs, for the runner. DeepSpeed's Slurm launcher starts files only."""
    by_file = plan.is_multi_node and plan.config["hardware"]["launcher"] == "slurm"
    return [str(WORKER_FILE)] if by_file else ["--module", "memlab.worker"]


def master_address(plan: Plan) -> str:
    """Where the ranks meet: the first host of the hostfile."""
    return next(iter(read_hostfile(plan.config["hardware"]["hostfile"])))


def takes_sigterm(plan: Plan) -> bool:
    """Whether the processes of a launch may be sent SIGTERM.

    With pdsh, DeepSpeed's runner answers it with ``pkill -f`` of every DeepSpeed launch of this user on all hosts.
    Killed, it cannot, and the ranks end with their connection (memlab.worker.lifeline).
    """
    return not (plan.is_multi_node and plan.config["hardware"]["launcher"] == "pdsh")


@contextlib.contextmanager
def for_nodes(plan: Plan, machine: Machine, environment: dict[str, str], port: int) -> Iterator[dict[str, str]]:
    """``environment`` of the runner, so that what the ranks need reaches them on every node while the block runs."""
    if not plan.is_multi_node:
        yield environment
        return
    environment = environment | _meeting_point(plan, port)
    if plan.config["hardware"]["launcher"] == "slurm":  # srun passes on the whole environment
        yield environment
        return
    names = {*own_variables(plan, machine), *_meeting_point(plan, port), *filter(_is_sent, environment)}
    with tempfile.NamedTemporaryFile("w", prefix="memlab-", suffix=".env") as file:  # mode 0600
        file.writelines(f"{name}={_in_double_quotes(environment[name])}\n" for name in sorted(names))
        file.flush()
        yield {**environment, "DS_ENV_FILE": file.name}


def _meeting_point(plan: Plan, port: int) -> dict[str, str]:
    if plan.config["hardware"]["launcher"] == "pdsh":  # DeepSpeed's launch.py, on each node, sets all of these
        return {"MEMLAB_LIFELINE": "stdin"}
    return {
        "MASTER_ADDR": master_address(plan),
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_SIZE": str(plan.ranks_per_node),
    }


def _is_sent(name: str) -> bool:
    return name.startswith(SENT_PREFIXES) and not is_secret_name(name)


def _in_double_quotes(value: str) -> str:
    """DeepSpeed puts a value in double quotes for the remote shell, but escapes nothing in it."""
    return re.sub(r'([\\"$`])', r"\\\1", value)


def failed_node(log: Path) -> int | None:
    """The exit code of a node that has failed, from pdsh's output: pdsh itself goes on waiting for the others."""
    match = re.search(r"ssh exited with exit code (\d+)", tail(log, 200))
    return int(match[1]) if match else None
