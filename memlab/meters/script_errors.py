"""Classification of an exception in a rank: the status and reason for the record."""

import re
from typing import Any

import torch

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FIRST_LINE = re.compile(r"(?:.*:\s*\n)?.*")  # with the next one where it ends with a colon
_TRIED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_DEVICE_OOM = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_HOST_OOM = ("can't allocate memory", "Cannot allocate memory", "std::bad_alloc", "cudaHostAlloc", "cudaHostRegister")
_TRANSPORT = (
    "EADDRINUSE",
    "address already in use",
    "NCCL error",
    "DistBackendError",
    "Connection reset by peer",
    "Connection closed by peer",
    "Timed out initializing process group",
)

_NO_LAUNCHER = re.compile(r"^KeyError: '(?:RANK|LOCAL_RANK|WORLD_SIZE)'$|variable \w+ expected, but not set")
"""Messages of Python and of torch about the variables that a launcher sets."""


def describe(error: BaseException) -> tuple[str, str, dict[str, Any] | None]:
    """Return status, one-line reason and, for an out-of-memory of the device, the message and requested bytes."""
    # An ImportError of transformers begins with an empty line.
    message = f"{type(error).__name__}: {str(error).strip()}".removesuffix(": ")
    found = _FIRST_LINE.match(message)
    first_line = " ".join((found[0] if found else "").partition(" If reserved but unallocated")[0].split())[:500]
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", first_line, None
    if isinstance(error, MemoryError) or any(mark in message for mark in _HOST_OOM):
        return "host_oom", first_line, None
    if isinstance(error, torch.cuda.OutOfMemoryError) or any(mark in message for mark in _DEVICE_OOM):
        return "gpu_oom", first_line, {"requested_bytes": requested_bytes(message), "message": first_line}
    if any(mark in message for mark in _TRANSPORT):
        return "infra", first_line, None
    if _NO_LAUNCHER.search(first_line):
        first_line += ": the command lacks its launcher, which sets this variable: torchrun --nproc_per_node=<GPUs>"
    return "failed", first_line, None


def requested_bytes(message: str) -> int | None:
    """Parse the bytes in torch's message ``Tried to allocate 2.00 GiB``, which torch rounds to two decimals."""
    match = _TRIED.search(message)
    return int(float(match[1]) * UNITS[match[2]]) if match else None
