"""Peaks of a process or a step, folded together from the pieces of its time: by phase and in all, and where the highest
is."""

from dataclasses import replace
from typing import Any

from .batches import BatchSize
from .memory import Peaks
from .phases import IN_A_STEP, ONCE, TimedPiece


class PhasePeaks:
    """Peaks by phase and in all, folded from pieces. ``failures_before``: the allocator's retries and out-of-memory
    errors before the first piece; ``None`` counts as no errors."""

    def __init__(self, failures_before: tuple[int, int] | None = None):
        self.phases: dict[str, Peaks] = {}
        self.total = Peaks()
        self.peak: dict[str, Any] = {}  # where the highest is; of a process: ``attached.peak`` of the file
        self.failures_before = failures_before
        self.failures: tuple[int, int] | None = None  # since the process began

    def fold(self, key: str | None, step: int | None, piece: TimedPiece) -> None:
        """Add a piece. ``key``: the name of its phase; ``step``: the number of its optimizer step."""
        self.failures = piece.reading.failures or self.failures
        if key is not None:
            peaks = self.phases.setdefault(key, Peaks())
            if peaks.fold(piece.reading):
                peaks.where, peaks.step = piece.where, step
            peaks.seconds += piece.seconds
            peaks.count += piece.ends_phase
        if self.total.fold(piece.reading):
            self.peak = {"step": step, "phase": key, "where": piece.where, "bytes": self.total.deciding_peak}

    def failed(self) -> tuple[int | None, int | None]:
        """Return the retries and the out-of-memory errors of the pieces; ``None`` if they are not counted."""
        if self.failures is None:
            return None, None
        retries, ooms = self.failures_before or (0, 0)
        return self.failures[0] - retries, self.failures[1] - ooms


class ProcessPeaks(PhasePeaks):
    """Peaks of the whole process. :meth:`key` names a phase for :meth:`fold`."""

    def start_over(self, other: "ProcessPeaks", has_trained: bool) -> None:
        """Take over the phases before the first step from the figures of an earlier training. ``has_trained``: that
        training has taken steps, so the time of these phases is counted there."""
        before = {name: peaks for name, peaks in other.phases.items() if name in ONCE}
        self.phases = {name: replace(peaks, seconds=0.0) if has_trained else peaks for name, peaks in before.items()}
        self.total.host_peak_bytes = max((peaks.host_peak_bytes or 0 for peaks in before.values()), default=None)
        self.failures_before = other.failures

    def key(self, phase: str | None, steps_done: int) -> str | None:
        """Name a phase with the prefix ``first_`` the first time: it makes states and buffers that stay."""
        if phase is None or phase in ONCE:
            return phase
        first = self.phases.get(f"first_{phase}")
        is_first = steps_done == 0 if phase in IN_A_STEP else first is None or first.count == 0
        return f"first_{phase}" if is_first else phase

    def name_batch_of_peak(self, step: int, size: BatchSize | None) -> None:
        """Say what the batch of a step was, if the highest peak so far is in it."""
        if size is not None and self.peak.get("step") == step:
            self.peak |= {"samples": size.samples, "tokens": size.tokens, "longest_sample": size.longest_sample}

    def forget_step(self, number: int) -> None:
        """Take the number of a step off the figures: what came after the last optimizer step was no step."""
        if self.peak.get("step") == number:
            self.peak["step"] = None
        for peaks in self.phases.values():
            if peaks.step == number:
                peaks.step = None
