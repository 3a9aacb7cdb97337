"""Shared-memory segments of DeepSpeed's CPU ranks: 66 MiB for each rank of a launch. DeepSpeed never removes them.

Source of the names: csrc/cpu/comm/shm.cpp of DeepSpeed 0.19.8.
"""

import os
from pathlib import Path

FOLDER = Path("/dev/shm")


def segment(address: str, port: str, rank: int) -> Path:
    """Return the path of a rank's segment, for the launch whose ranks meet at this address and port."""
    return FOLDER / f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"


def remove_segments(port: int) -> None:
    """Remove the segments of all ranks that met at this port of this machine. Killed ranks leave theirs behind."""
    for path in FOLDER.glob(segment("*", str(port), 0).name.removesuffix("0") + "*"):
        path.unlink(missing_ok=True)
