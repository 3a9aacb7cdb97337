"""Optimizer steps as rows: what each took, written as soon as the device has done it."""

import json
import time
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from .batches import BatchSize
from .clock import Mark, seconds
from .own_errors import contained
from .process_peaks import PhasePeaks

LAST_WAIT_S = 5
"""Seconds to wait for the device at the end: after a failure it may never come."""


@dataclass
class Step:
    """The running optimizer step, from the end of the one before."""

    number: int  # from 1
    begin: Mark
    figures: PhasePeaks = field(default_factory=PhasePeaks)
    recorded: bool = False  # torch's memory history was recorded when it began: then it takes longer
    micro_batches: int = 0
    size: BatchSize | None = None  # of all micro batches together
    beside: list[tuple[Mark, Mark]] = field(default_factory=list)  # evaluations, savings: no part of the step's time

    def add_batch(self, size: BatchSize) -> None:
        self.micro_batches += 1
        self.size = size if self.size is None else self.size + size

    def lasted(self, end: Mark) -> float:
        """Return the seconds until a past ``end``, without evaluations and savings."""
        return max(seconds(self.begin, end) - sum(seconds(*marks) for marks in self.beside), 0.0)

    def row(self, skipped: bool) -> dict[str, Any]:
        """Return the figures of the step, without its seconds."""
        peaks, (retries, ooms) = self.figures.total, self.figures.failed()
        return {
            "step": self.number,
            "seconds": None,
            "micro_batches": self.micro_batches,
            **asdict(self.size or BatchSize()),
            "peak_allocated_bytes": peaks.peak_allocated_bytes,
            "peak_active_bytes": peaks.peak_active_bytes,
            "peak_reserved_bytes": peaks.peak_reserved_bytes,
            "alloc_retries": retries,
            "ooms": ooms,
            "host_peak_bytes": peaks.host_peak_bytes,
            "phase": self.figures.peak.get("phase"),
            "phases": {
                name: [phase.peak_allocated_bytes, phase.peak_reserved_bytes]
                for name, phase in self.figures.phases.items()
                if phase.peak_allocated_bytes is not None
            },
            "skipped": skipped,
            "recorded": self.recorded,
        }


class Rows:
    """Rows of all steps. A row waits for the device to reach the end of its step; the host never waits."""

    def __init__(self):
        self.seconds: list[float | None] = []
        self._pending: list[tuple[Step, Mark, dict[str, Any], bool]] = []  # step, its end, its row, whether it is timed
        self._unwritten = b""  # lines that have no file yet, or no room on the disk
        self._file: FileIO | None = None

    def open(self, path: Path) -> None:
        """Write all rows to a file, from the first one on. What the script has left in its place is removed."""
        path.unlink(missing_ok=True)
        self._file = path.open("xb", buffering=0)
        self._write()

    def add(self, step: Step, end: Mark, skipped: bool, is_timed: bool = True) -> None:
        """Add a step that has ended. ``is_timed``: whether its time is the script's own; else it has no seconds."""
        self._pending.append((step, end, step.row(skipped), is_timed))
        self.flush()

    def flush(self, at_last: bool = False) -> None:
        """Write the rows whose steps the device has done; ``at_last``: the others, too, without their seconds."""
        while self._pending:
            step, end, row, is_timed = self._pending[0]
            is_past = step.begin.is_past and end.is_past
            if not is_past and not at_last:
                break
            del self._pending[0]
            if is_past and is_timed:
                row["seconds"] = step.lasted(end)
            self.seconds.append(row["seconds"])
            self._unwritten += json.dumps(row).encode() + b"\n"
        self._write()

    def finish(self) -> None:
        """Write the rows that are left, and wait a little for the device to do their steps."""
        deadline = time.monotonic() + LAST_WAIT_S
        while self._pending and time.monotonic() < deadline:
            self.flush()
            time.sleep(0.01)
        self.flush(at_last=True)

    @contained
    def _write(self) -> None:
        while self._file is not None and self._unwritten:
            self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
