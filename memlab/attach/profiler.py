"""torch's profiler over a few steps: what each operator takes on the host and on the device, as a Chrome trace.

The first of the steps warms the profiler up and is not kept. The profiler takes device memory of its own outside
torch's allocator, and slows the host. So neither memory nor times of these steps are comparable.
"""

import gzip
import re
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

WARMUP, STEPS = 1, 2
"""Steps that warm the profiler up, and steps that it keeps."""

PIECE = "memlab piece: "
"""Prefix of the mark at the end of each part of the run; the name of its phase follows, empty outside all phases."""

TRACE = ".profile.json.gz"
"""Suffix of the file of a rank: rankN.profile.json.gz."""


class StepsProfiler:
    """The profiler of one rank. Call :meth:`begin` before the first of ``WARMUP + STEPS`` steps, then :meth:`step_ends`
    after each. ``path``: the trace, which is written after the last step."""

    def __init__(self, path: Path):
        self._path = path
        self._profile: Any = None
        self._left = 0

    @property
    def runs(self) -> bool:
        return self._profile is not None

    def begin(self) -> None:
        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        schedule = torch.profiler.schedule(wait=0, warmup=WARMUP, active=STEPS, repeat=1)
        self._left = WARMUP + STEPS
        self._profile = profile(activities=activities, schedule=schedule, profile_memory=True)
        self._profile.start()

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
            self._write(running)

    def _write(self, running: profile) -> None:
        """Write the trace, without the name of the machine."""
        plain = self._path.with_suffix("")
        running.export_chrome_trace(str(plain))
        head, rest = re.split(rb'(?="traceEvents")', plain.read_bytes(), maxsplit=1)
        self._path.write_bytes(gzip.compress(re.sub(rb'"host_name": *"[^"]*",', b"", head) + rest, compresslevel=6))
        plain.unlink()

    def piece_ends(self, phase: str | None) -> None:
        """Mark the end of a part of the run, which was one of ``phase``."""
        if self.runs:
            with record_function(PIECE + (phase or "").removeprefix("first_")):
                pass
