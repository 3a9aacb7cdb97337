"""Launchers of ranks: the processes that start the ranks of a command, and which ranks run.

A launcher runs as it is. It sees the simulated GPUs, because it counts them. It starts the ranks of one node alone.
Every Python process of a command loads this module, so it imports little.
"""

import contextlib
import os
import sys

from memlab.meters import import_hook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from typing import Any

NAMES = frozenset(
    {
        *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        *("deepspeed", "ds", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
        *("accelerate", "accelerate-launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    }
)
"""Programs and modules that start ranks, and do not train themselves."""

NODES = "MEMLAB_NODES"
"""Variable with the number of nodes that torch's launcher was asked for, where it starts one node."""

ALL_RANKS = "MEMLAB_ALL_RANKS"
"""Variable that makes all ranks run, of a command on one node."""


def is_launcher() -> bool:
    """Whether this process is a known launcher, by its program or by the module of ``python -m``.

    To be called before the program begins, which changes ``sys.argv``: of ``python -m``, it holds only ``-m`` yet.
    """
    program = sys.orig_argv[-len(sys.argv)] if sys.argv[0] == "-m" else os.path.basename(sys.argv[0])
    return program in NAMES


def start_one_node() -> None:
    """Make launchers start the ranks of one node, and wait for no other node."""
    import_hook.after("torch.distributed.launcher.api", _torch_starts_one_node)
    import_hook.after("deepspeed.launcher.runner", _deepspeed_starts_one_node)


def _torch_starts_one_node(api: "Any") -> None:
    launch = api.launch_agent

    def launch_agent(config: "Any", *arguments: "Any", **options: "Any") -> "Any":
        os.environ[NODES] = str(config.max_nodes)
        config.min_nodes = config.max_nodes = 1
        config.rdzv_backend, config.rdzv_endpoint = "c10d", "localhost:0"  # a free port
        config.rdzv_configs = {"timeout": 60}  # seconds
        config.max_restarts = 0
        return launch(config, *arguments, **options)

    api.launch_agent = launch_agent


def _deepspeed_starts_one_node(runner: "Any") -> None:
    parse = runner.parse_args

    def parse_args(args: "list[str] | None" = None) -> "Any":
        """Parse the options as for a start by hand on each node, here on the first node."""
        found = parse(args)
        found.no_ssh, found.node_rank, found.master_addr = True, 0, found.master_addr or "127.0.0.1"
        return found

    runner.parse_args = parse_args


def takes_part(environ: "MutableMapping[str, str]") -> bool:
    """Return whether this process runs: the ranks between the first and the last one do not.

    On several nodes, the last rank of this node becomes the last rank of all. A script that starts its other ranks
    itself may number them by ``NODE_RANK`` and ``LOCAL_RANK`` (Lightning).
    """
    if ALL_RANKS in environ:
        return True
    if environ.get("NODE_RANK") == "0" and "RANK" not in environ:
        return environ.get("LOCAL_RANK") in (None, "0", str(int(environ.get("WORLD_SIZE", 1)) - 1))
    numbers = [environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
    if not all(text.isdigit() for text in numbers):
        return True
    rank, local_rank, world_size = map(int, numbers)
    here = ranks_of_node(environ) or world_size
    world_size *= int(environ.pop(NODES, 1))
    nodes = world_size // here
    environ["WORLD_SIZE"] = str(world_size)
    if "GROUP_WORLD_SIZE" in environ:
        environ["GROUP_WORLD_SIZE"] = str(nodes)
    if rank == 0:
        return True
    if local_rank < here - 1:
        return False
    environ["RANK"] = str(world_size - 1)
    for name in ("GROUP_RANK", "CROSS_RANK"):  # number of the node: torch's name, DeepSpeed's name
        if name in environ:
            environ[name] = str(nodes - 1)
    return True


def ranks_of_node(environ: "Mapping[str, str]") -> int | None:
    """Return how many ranks the launcher starts on this node; ``None`` if its variables do not tell."""
    text = environ.get("LOCAL_WORLD_SIZE") or environ.get("LOCAL_SIZE") or ""
    return int(text) if text.isdigit() else None


def wait_for_started_ranks() -> None:
    """Wait until the ranks have ended that this process, a rank itself, has started: there is no barrier to do so."""
    with open("/proc/thread-self/children") as children:
        started = children.read().split()
    for child in started:
        with contextlib.suppress(OSError):
            with open(f"/proc/{child}/environ", "rb") as variables:
                is_rank = any(each.startswith(b"LOCAL_RANK=") for each in variables.read().split(b"\0"))
            if is_rank:
                os.waitpid(int(child), 0)
