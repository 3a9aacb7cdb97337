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


MOST_LETTERS = 80
"""Length of the script's last line that is shown, in letters."""


class CommandProgress:
    """Progress display, used with ``with``: one line that changes on a terminal, a line now and then elsewhere."""

    def __init__(self, folder: RunFolder, out: Console, timeout_s: float):
        self._folder, self._out, self._timeout_s = folder, out, timeout_s
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
        said = self._last_line()
        if said.endswith(READING):
            return f"{seconds}: {said.removeprefix('memlab: ')}"
        steps = {rank: len(read_rows(self._folder.step_rows(rank))) for rank in self._folder.ranks_with_rows()}
        told = ", ".join(f"rank {rank} is in step {number + 1}" for rank, number in steps.items())
        return f"{seconds}: {told or self._waiting(said)}"

    def _waiting(self, said: str) -> str:
        """Say what is waited for before the first optimizer step."""
        output = f", its last output: {said[:MOST_LETTERS]}" if said else ""
        limit = f"{self._timeout_s:,.0f} s"
        return f"waiting for the script's first optimizer step{output}; it is ended after {limit} (--timeout)"

    def _last_line(self) -> str:
        """Return the last line of the command's output."""
        try:
            with (self._folder.path / LOG).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 1000))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return lines[-1].strip() if lines else ""

    def _watch(self) -> None:
        if self._out.is_terminal:
            with Status(self.line(), console=self._out) as status:
                while not self._done.wait(EVERY_S):
                    status.update(self.line())
        else:
            while not self._done.wait(PLAIN_S):
                self._out.print(self.line())
