"""What launches have left named in shared memory. Other launches may be under way: theirs is in use, not left."""

import time
from collections.abc import Iterator
from pathlib import Path

from memlab.system import shared_memory as segments
from memlab.system.deadman import marked_by

DEFAULT_PORT = "29500"
"""Port of torch's and DeepSpeed's launchers, for commands that are not memlab's own: memlab always takes a free one."""

SETTLED_S = 10.0  # another worker's launch removes its segments when its ranks are gone already


def segments_left() -> set[Path]:
    """DeepSpeed's segments of launches that have no living rank, and torch's of processes that have ended."""
    return {*_deepspeed_s(), *_torch_s()}


def segments_left_since(before: set[Path]) -> set[Path]:
    """The same without those of ``before``, when all had the time to remove theirs."""
    deadline = time.monotonic() + SETTLED_S
    while (left := segments_left() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _deepspeed_s() -> Iterator[Path]:
    for path in segments.FOLDER.glob(segments.segment("*", "*", 0).name.removesuffix("0") + "*"):
        port = path.name.split("_")[-2]
        if port != DEFAULT_PORT and not any(marked_by("MASTER_PORT", port)):
            yield path


def _torch_s() -> Iterator[Path]:
    for path in segments.FOLDER.glob("torch_*"):  # torch_<process>_<random>_<number>
        process = path.name.split("_")[1]
        if not Path("/proc", process).exists():
            yield path
