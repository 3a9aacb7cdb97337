"""The end of all ranks after the same optimizer step, without a collective of the script left half done."""

import contextlib
import time

import torch
import torch.distributed as dist

WAIT_S = 60
"""Seconds to wait for the other ranks: one that steps less often than this one never comes."""


def wait_for_all_ranks() -> None:
    """Wait until the device has done this rank's work and all ranks have come here.

    Ranks meet at the store of torch.distributed, so no collective is needed. Rank 0 leaves last, since it may hold the
    store. After an error in the store, or after ``WAIT_S``, the rank goes on.
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if not dist.is_available() or not dist.is_initialized():
        return
    deadline, world = time.monotonic() + WAIT_S, dist.get_world_size()
    with contextlib.suppress(Exception):
        store = dist.distributed_c10d._get_default_store()
        store.add("memlab_attach/last_step_done", 1)
        _wait(store, "memlab_attach/last_step_done", world, deadline)
        store.add("memlab_attach/leaves", 1)
        if dist.get_rank() == 0:
            _wait(store, "memlab_attach/leaves", world, deadline)


def _wait(store: "dist.Store", key: str, number: int, deadline: float) -> None:
    while store.add(key, 0) < number and time.monotonic() < deadline:
        time.sleep(0.02)
