"""What DeepSpeed's CPU ranks name in shared memory: one segment of 66 MiB for each rank of a launch, never removed.

The names are those of DeepSpeed 0.19.8, csrc/cpu/comm/shm.cpp.
"""

import os
from pathlib import Path

FOLDER = Path("/dev/shm")


def segment(address: str, port: str, rank: int) -> Path:
    """The segment of a rank of the launch whose ranks meet there."""
    return FOLDER / f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"


def remove_segments(port: int) -> None:
    """Remove what ranks that met at this port of this machine left: those that were killed before they could."""
    for path in FOLDER.glob(segment("*", str(port), 0).name.removesuffix("0") + "*"):
        path.unlink(missing_ok=True)
