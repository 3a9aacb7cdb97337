"""Progress of the prediction of a command: the optimizer steps that each simulated rank has done, and the seconds."""

import os
import threading
import time
from types import TracebackType

from rich.console import Console
from rich.status import Status

from memlab.predict.trace.epoch_batches import READING
from memlab.predict.trace.run_command import LOG
from memlab.runs.folder import RunFolder
from memlab.runs.step_rows import read_rows

EVERY_S = 1.0
PLAIN_S = 10.0
"""Seconds between lines if the output is not a terminal."""


class CommandProgress:
    """Progress display, used with ``with``: one line that changes on a terminal, a line now and then elsewhere."""

    def __init__(self, folder: RunFolder, out: Console):
        self._folder, self._out = folder, out
        self._change: str | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._began = time.monotonic()

    def __enter__(self) -> "CommandProgress":
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def begin_change(self, told: str) -> None:
        """Show that a single change of the command is predicted now."""
        self._change = told

    def line(self) -> str:
        seconds = f"{time.monotonic() - self._began:.0f} s"
        if self._change is not None:
            return f"{seconds}: predicting the command with {self._change}"
        if reading := self._reading():
            return f"{seconds}: {reading}"
        steps = {rank: len(read_rows(self._folder.step_rows(rank))) for rank in self._folder.ranks_with_rows()}
        told = ", ".join(f"rank {rank} is in step {number + 1}" for rank, number in steps.items())
        return f"{seconds}: {told or 'the script starts on simulated GPUs'}"

    def _reading(self) -> str | None:
        """Return the last line of the command's output if it says how far a rank has read its epoch ahead."""
        try:
            with (self._folder.path / LOG).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 1000))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return None
        return lines[-1].removeprefix("memlab: ") if lines and lines[-1].endswith(READING) else None

    def _watch(self) -> None:
        if self._out.is_terminal:
            with Status(self.line(), console=self._out) as status:
                while not self._done.wait(EVERY_S):
                    status.update(self.line())
        else:
            while not self._done.wait(PLAIN_S):
                self._out.print(self.line())
