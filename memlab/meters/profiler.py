"""torch's profiler over a few steps: what each operator takes on the host and on the device, as a Chrome trace.

The first of the steps warms the profiler up and is not kept. The profiler takes device memory of its own outside
torch's allocator, and slows the host. So neither memory nor times of these steps are comparable.
"""

import gzip
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from .options import PROFILED_STEPS, PROFILER, PROFILER_WARMUP
from .own_errors import contained, note

PIECE = "memlab piece: "
"""Prefix of the mark at the end of each part of the run; the name of its phase follows, empty outside all phases."""

TRACE = ".profile.json.gz"
"""Suffix of the file of a rank: rankN.profile.json.gz."""

TORCHS_PART = ".tmp"
"""Suffix that torch adds to the name of a trace until it is whole. On a full disk such a file stays."""

EVENT_BYTES = 370
"""Bytes of a trace for each of its events, before it is packed: 340 to 370 in the six H200 runs of results/profile."""

MIB = 1 << 20

MOST_OF_THE_DISK = 0.5
"""Most of the free space that a trace may take while it is written: the script writes at the same time."""

HEAD = 1 << 20
"""Bytes at the beginning of a trace that hold all of its facts about the machine."""


class StepsProfiler:
    """The profiler of one rank. Call :meth:`begin` before the first of ``PROFILER_WARMUP + PROFILED_STEPS`` steps, then
    :meth:`step_ends` after each. After the last one, the trace is written beside the rank's file, whose path ``place``
    returns. Where the disk has too little space, a line says so, and the run goes on without it."""

    def __init__(self, place: Callable[[], Path]):
        self._place = place
        self._profile: Any = None
        self._left = 0

    @property
    def runs(self) -> bool:
        return self._profile is not None

    def begin(self) -> None:
        """Begin to profile. Raises ``RuntimeError`` if the script does so itself: torch has one profiler."""
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("the script profiles itself with torch's profiler, so memlab does not")
        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        schedule = torch.profiler.schedule(wait=0, warmup=PROFILER_WARMUP, active=PROFILED_STEPS, repeat=1)
        running = profile(activities=activities, schedule=schedule, profile_memory=True)
        running.start()
        self._profile, self._left = running, PROFILER_WARMUP + PROFILED_STEPS

    def step_ends(self) -> None:
        """End a step. It ends when the device has done its work, so that each step contains its own."""
        if not self.runs:
            return
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._left -= 1
        if self._left:
            self._profile.step()
        else:
            running, self._profile = self._profile, None
            running.stop()
            try:
                self._write(running)
            except OSError as error:
                note(PROFILER, error)
                print(f"memlab: the profiled steps are not kept: {error}", file=sys.stderr)

    def _write(self, running: profile) -> None:
        """Write the trace, whole or not at all, without the name of the machine. Raises ``OSError``."""
        path = self._place().with_suffix(TRACE)
        _check_space(path.parent, EVENT_BYTES * len(running.profiler.kineto_results.events()))
        plain, packed = path.with_suffix(""), path.with_suffix(".part")
        torchs_part = plain.with_name(plain.name + TORCHS_PART)
        try:
            running.export_chrome_trace(str(plain))  # prints an error and goes on where it cannot write
            if not plain.exists():
                raise OSError(f"torch could not write {plain}, as on a full disk")
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
                target.write(re.sub(rb'"host_name": *"[^"]*",', b"", source.read(HEAD)))
                shutil.copyfileobj(source, target)
            packed.replace(path)
        finally:
            for left in filter(Path.exists, (plain, torchs_part, packed)):
                os.truncate(left, 0)  # torch keeps a file open that it could not write to its end
                left.unlink()

    @contained
    def end(self) -> None:
        """Stop, if the process ends before the last step: a profiler that still runs then crashes it."""
        if self.runs:
            self._profile.stop()
            self._profile = None

    @contained
    def piece_ends(self, phase: str | None, *_: Any) -> None:
        """Mark the end of a part of the run, which was one of ``phase``."""
        if self.runs:
            with record_function(PIECE + (phase or "").removeprefix("first_")):
                pass


def _check_space(folder: Path, needed: int) -> None:
    """Raise ``OSError`` if ``needed`` bytes are more than :data:`MOST_OF_THE_DISK` allows."""
    free = shutil.disk_usage(folder).free
    if needed > MOST_OF_THE_DISK * free:
        raise OSError(
            f"their trace takes some {needed / MIB:,.0f} MiB while it is written, and {folder} has {free / MIB:,.0f} "
            f"free, of which it may take {MOST_OF_THE_DISK:.0%}. Make room, or profile steps that launch fewer kernels"
        )
