"""Calls in which NCCL may take memory of the GPU: it makes a group's communicator in its first collective, and buffers
in the first collective of a kind."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from .listeners.wrap import listening

COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "barrier"),
    *("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "_allgather_base"),
    *("all_gather_single", "all_gather_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single"),
    *("reduce_scatter", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced", "send", "recv", "recv_anysource"),
    *("_start_coalescing", "_end_coalescing"),
)
"""Methods of a process group through which Python starts collectives, in one version of torch or another."""

OF_DDP = ("_verify_params_across_processes", "_broadcast_coalesced")
"""Functions of torch.distributed with which DistributedDataParallel starts its first collectives in C++."""


def watch(before: Callable[[], None], after: Callable[[str], None]) -> None:
    """Call ``before`` and ``after`` around each collective, ``after`` with the collective's name and group."""
    if not dist.is_available():
        return
    from torch._C._distributed_c10d import Backend  # there if torch.distributed is available

    watched = [(dist.ProcessGroup, name) for name in COLLECTIVES]
    watched += [(dist, name) for name in OF_DDP]
    watched += [(Backend, "eager_connect_single_device")]  # init_process_group(device_id=...)
    for owner, name in watched:
        if name in vars(owner):
            listening(
                owner,
                name,
                before=lambda *args, **kwargs: before(),
                after=lambda _, group, *args, name=name, **kwargs: after(f"{name} of {_group(group)}"),
            )


def _group(group: Any) -> str:
    """Name a process group, or the backend of one."""
    name, size = getattr(group, "group_desc", "undefined"), group.size()
    return f"{'a group' if name == 'undefined' else name} ({size} rank{'s' * (size > 1)})"
