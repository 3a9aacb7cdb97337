"""Runs of a command with a choice of memlab's made the other way round (trace/shadow/choices.py).

Each begins as soon as the command has made the choice, beside it, if the machine has room for both. The command goes
first where cores are few.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from memlab.core.record import Record
from memlab.planner.command_record import TracedCommand, record_of
from memlab.predict.trace.run_command import choices_so_far
from memlab.predict.trace.shadow_process import ShadowError
from memlab.runs.folder import RunFolder
from memlab.system.deadman import kill_marked
from memlab.system.sandbox.limits import ROOM_BESIDE, free_host_memory

RANGED = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")

POLL_S, KILL_AGAIN_S = 0.5, 0.05

NICENESS = 10


class OtherEnds:
    """A context manager: an exception that leaves the block ends the runs.

    ``trace``: runs the command in a run folder, with ``other_end`` the other way round. ``folder``: the command's own.
    ``token``: of the launch that all of them are in.
    """

    def __init__(self, trace: Callable[..., TracedCommand], folder: RunFolder, token: str):
        self._trace, self._folder, self._token = trace, folder, token
        self._thread = ThreadPoolExecutor(1, initializer=os.nice, initargs=(NICENESS,))
        self._runs: dict[str, Future[TracedCommand]] = {}

    def __enter__(self) -> "OtherEnds":
        return self

    def __exit__(self, failed: Any, *_: object) -> None:
        self._thread.shutdown(wait=not failed, cancel_futures=bool(failed))
        while failed and not all(run.done() for run in self._runs.values()):
            kill_marked(self._token)  # again, since a run may be about to start a process
            time.sleep(KILL_AGAIN_S)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Begin the runs as the command makes its choices; the block runs it."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(POLL_S):
                if free_host_memory() > ROOM_BESIDE:
                    self._begin(choices_so_far(self._folder.path))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

    def of(self, traced: TracedCommand) -> Callable[[Record], list[dict[str, Any]]]:
        """Begin the runs that are missing, and return a function that waits for all: it makes the ranges of a record.

        A range has ``choice`` (of trace_format.py), and for each key of ``RANGED`` [lowest, highest] of both
        predictions, each on its highest rank; ``failure`` where the other prediction failed.
        """
        choices = sorted({choice for each in traced.traces.values() for choice in each.choices})
        self._begin(choices)
        return lambda record: [self._range(choice, record) for choice in choices]

    def _begin(self, choices: Iterable[str]) -> None:
        for choice in sorted({*choices} - self._runs.keys()):
            place = RunFolder(self._folder.own_folder(f"other_end_{choice}"))
            self._runs[choice] = self._thread.submit(self._trace, place, other_end=choice)

    def _range(self, choice: str, record: Record) -> dict[str, Any]:
        try:
            both = record, record_of(self._runs[choice].result())[0]
        except ShadowError as error:
            return {"choice": choice, "failure": str(error)}
        highest = {key: [max(rank[key] or 0 for rank in each.ranks) for each in both] for key in RANGED}
        return {"choice": choice, **{key: sorted(found) for key, found in highest.items()}}
