"""Progress of the prediction of a command: what its script does now, and the seconds."""

import re
import threading
import time

from rich.console import Console
from rich.status import Status
from rich.text import Text

from memlab.files.regular_file import read_end
from memlab.prediction.run_command import LOG, steps_done
from memlab.runs.folder import RunFolder
from memlab.simulator.trace.epoch_batches import READING
from memlab.system.terminal import safe

EVERY_S = 1.0
PLAIN_S = 10.0
"""Seconds between lines if the output is not a terminal."""


LAST_BYTES = 1000
"""Bytes at the end of the script's output in which its last line is looked for."""

MOST_LETTERS = 80
"""Length of the script's last line that is shown, in letters."""

BAR = re.compile(r"(?P<what>[^|%]*?)(?: \(num_proc=\d+\))?: +\d+%\|[^|]*\| *(?P<done>\d+)/(?P<of>\d+) ")
"""A progress bar of tqdm, for example of ``datasets``: ``Tokenizing train dataset:  40%|####  | 4000/10000 [...]``."""

OF_TORCH = re.compile(r"\[[IW]\d{4} ")
"""Beginning of a line that torch's C++ code logs: of sockets, when ranks meet."""

WORK = {"Map": "preparing data", "Filter": "choosing data"}
"""What ``datasets`` calls its work by default -> what is shown."""


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

    def __exit__(self, *exception: object) -> None:
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
        steps = steps_done(self._folder.path)
        if len(set(steps)) == 1:
            return f"{seconds}: step {min(steps) + 1}"
        if steps:
            reached = f"step {min(steps) + 1} to {max(steps) + 1}"
            return f"{seconds}: {reached}; here, ranks do not wait for each other"
        return f"{seconds}: {_before_steps(said)}"

    def _last_line(self) -> str:
        """Return the last line of the command's output, without what a terminal would obey."""
        lines = read_end(self._folder.path / LOG, LAST_BYTES).splitlines()
        return next((safe(line.strip()) for line in reversed(lines) if not OF_TORCH.match(line)), "")

    def _watch(self) -> None:
        if self._out.is_terminal:
            with Status(Text(self.line()), console=self._out) as status:
                while not self._done.wait(EVERY_S):
                    status.update(Text(self.line()))
        else:
            while not self._done.wait(PLAIN_S):
                self._out.print(self.line())


def _before_steps(said: str) -> str:
    """Say what the script does before its first optimizer step. ``said``: its last output."""
    if bar := BAR.match(said):
        what = WORK.get(bar["what"], bar["what"][:1].lower() + bar["what"][1:])
        return f"{what[:MOST_LETTERS]}, {int(bar['done']):,} of {int(bar['of']):,}"
    return f"before the first step{f'; the script says: {said[:MOST_LETTERS]}' if said else ''}"
