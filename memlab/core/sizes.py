"""Sizes of memory: binary units in bytes, and their text in messages."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

UNLIMITED = 1 << 62
"""Bytes; a limit that no memory reaches."""

OTHER_GPU_BYTES = MIB
"""Bytes that a process has on a second GPU that counts. Less are mistakes of scripts, as of every rank on cuda:0."""


def in_gib(size: int) -> str:
    """Write a size with its unit: ``1.50 GiB``."""
    return f"{size / GIB:.2f} GiB"
