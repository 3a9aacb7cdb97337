"""Half a second that says how fast this host runs what the host does in a training step.

Hosts with equal GPUs differ by 1.8 in such work, and so do the step times of host-bound trainings. The probe runs once
a node and process, after everything is measured. It uses one thread and 64 MiB of host memory, and no GPU.
"""

import math
import time
from collections.abc import Callable
from functools import cache

import torch

from .own_errors import contained

SECONDS = 0.17
"""Seconds for each of the three figures."""

CALLS = 1000
COPIED_BYTES = 32 * 2**20
"""More than the caches of a core hold."""


@contained
@cache
def probe_host() -> dict[str, float]:
    """Return calls of a Python function per second, seconds that torch takes to dispatch an operator of one element on
    the CPU, and bytes per second that are copied within host memory. Each is the fastest of many tries: other processes
    disturb some of them."""
    source, target = memoryview(bytearray(COPIED_BYTES)), memoryview(bytearray(COPIED_BYTES))
    number = torch.ones(1, device="cpu", dtype=torch.float32)

    def call() -> None:
        for _ in range(CALLS):
            _nothing()

    def dispatch() -> None:
        for _ in range(CALLS):
            number.mul_(1.0)

    def copy() -> None:
        target[:] = source

    with torch.no_grad():
        return {
            "python_calls_per_second": CALLS / _fastest(call),
            "torch_dispatch_seconds": _fastest(dispatch) / CALLS,
            "copied_bytes_per_second": COPIED_BYTES / _fastest(copy),
        }


def _nothing() -> None:
    pass


def _fastest(work: Callable[[], None]) -> float:
    """Return the seconds of the fastest of the calls that fit into :data:`SECONDS`. The first one is not counted."""
    work()
    ends, fastest = time.perf_counter() + SECONDS, math.inf
    while (began := time.perf_counter()) < ends:
        work()
        fastest = min(fastest, time.perf_counter() - began)
    return fastest
