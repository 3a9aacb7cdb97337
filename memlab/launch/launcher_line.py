"""The command line that starts the ranks, and a free port for them."""

import base64
import json
import socket
import sys
from collections.abc import Sequence

from memlab.core.plan import Plan
from memlab.launch.nodes import node_words, worker_words
from memlab.runs.folder import RunFolder

NO_HOSTFILE = "none"
"""Hostfile that does not exist: DeepSpeed then uses only this machine. By default it would read /job/hostfile."""


def command(plan: Plan, folders: Sequence[RunFolder | str], gpu_ids: Sequence[str], port: int | str) -> list[str]:
    """Return the command that runs memlab.training with DeepSpeed's launcher.

    ``gpu_ids``: indices or UUIDs of this machine's GPUs; empty for ranks on a CPU.
    """
    work = ["--no_local_rank", *worker_words(plan), *map(str, folders)]
    runner = [sys.executable, "-m", "deepspeed.launcher.runner"]
    if plan.is_multi_node:
        return [*runner, *node_words(plan), "--master_port", str(port), *work]
    if any(not id.isdigit() for id in gpu_ids):
        # The runner accepts only indices (deepspeed#5278). launch.py, which it would start, accepts every name that is
        # valid in CUDA_VISIBLE_DEVICES.
        hosts = base64.urlsafe_b64encode(json.dumps({"localhost": list(gpu_ids)}).encode()).decode()
        launch = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={hosts}"]
        return [*launch, "--master_addr=127.0.0.1", f"--master_port={port}", *work]
    slots = ["--include", f"localhost:{','.join(gpu_ids)}"] if gpu_ids else ["--num_gpus", str(plan.world_size)]
    return [*runner, "--hostfile", NO_HOSTFILE, *slots, "--master_port", str(port), *work]


def free_port() -> int:
    """Return a port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
