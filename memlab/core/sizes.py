"""Sizes of memory: binary units in bytes, and their text in messages."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

UNLIMITED = 1 << 62
"""Bytes; a limit that no memory reaches."""


def in_gib(size: int) -> str:
    """Write a size with its unit: ``1.50 GiB``."""
    return f"{size / GIB:.2f} GiB"
