"""Sweeps made by the tests of figures and pages."""

from pathlib import Path
from typing import Any

from folders import MIB, make_config, make_record, write

from memlab.core.config import Allocator

CONF = {"default": "", "expandable": "expandable_segments:True"}


def add_point(folder: Path, tokens: int, micro: int = 1, allocator: str = "default", **options: Any) -> Path:
    """One run folder. Memory grows with tokens, and is 10 % less where segments can expand.

    ``options``: ``status``, ``mode``, and any field of the record.
    """
    config = make_config(tokens, micro, allocator=Allocator(conf=CONF[allocator]))
    config.mode = options.pop("mode", "measure")
    share = 1.0 if allocator == "default" else 0.9
    record = make_record(
        config,
        {"model": "small", "zero_stage": "zero2", "allocator": allocator},
        options.pop("status", "ok"),
        allocated=round((40_000 + 10 * tokens * micro) * share) * MIB,
        seconds=0.2 + tokens * micro / 10_000,
    )
    record.source = "measured" if config.mode == "measure" else "predicted"
    for name, value in options.items():
        setattr(record, name, value)
    return write(folder, record)


def small_sweep(folder: Path) -> Path:
    """Two allocators over four lengths and three batches, one out-of-memory, two predictions: 15 points."""
    for allocator in CONF:
        for tokens in (128, 256, 512, 1024):
            add_point(folder, tokens, allocator=allocator)
        for micro in (2, 3):
            add_point(folder, 1024, micro, allocator)
    add_point(folder, 1024, 4, status="gpu_oom")
    for tokens in (128, 1024):
        add_point(folder, tokens, mode="predict")
    return folder
